"""Imports what `recall score --engine recorded` needs, for processes that are forked from one that has it."""

import rich.console
import rich.progress

import engines.recorded
import recall.models
import recall.progress
import recall.recording
import recall.references
import recall.resume
import recall.scoring
import recall.selection

__all__ = ["engines", "recall", "rich"]
