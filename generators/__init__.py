"""Prompts by seed: numbered records, each with a random code, and a question about them.

This package knows tokenizers and text; it runs no model and imports no torch of its own.
"""

from generators.errors import GeneratorError
from generators.prompts import Prompt, read_prompts, write_prompts
from generators.sets import PromptSpec, laptop_specs, make_prompts, seeded_specs
from generators.tasks import TASKS, Gives, Task, TaskName
from generators.tokens import PromptTokenizer, sha256_of_ids

__all__ = [
    "TASKS",
    "GeneratorError",
    "Gives",
    "Prompt",
    "PromptSpec",
    "PromptTokenizer",
    "Task",
    "TaskName",
    "laptop_specs",
    "make_prompts",
    "read_prompts",
    "seeded_specs",
    "sha256_of_ids",
    "write_prompts",
]
