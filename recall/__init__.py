"""Long-context recall evaluation: generate prompts by seed, score engines on them, compare the answers."""

__version__ = "0.1.0"
