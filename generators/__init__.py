"""Prompts by seed: numbered records, each with a random code, and the question for one of them.

This package knows tokenizers and text; it runs no model and imports no torch of its own.
"""

from generators.errors import GeneratorError
from generators.prompts import Prompt, read_prompts, write_prompts
from generators.sets import PromptSpec, laptop_specs, make_prompts, seeded_specs
from generators.tokens import PromptTokenizer, sha256_of_ids

__all__ = [
    "GeneratorError",
    "Prompt",
    "PromptSpec",
    "PromptTokenizer",
    "laptop_specs",
    "make_prompts",
    "read_prompts",
    "seeded_specs",
    "sha256_of_ids",
    "write_prompts",
]
