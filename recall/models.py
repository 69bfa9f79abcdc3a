"""What a model's name on the command line means: where it is loaded from, and what rows call it."""

import sys
from pathlib import Path

from recall import demo


def resolve(model: str) -> str | Path:
    """Return what transformers loads for a name: the converted demo model's folder, or the name as it is."""
    return demo.demo_folder(lambda text: print(text, file=sys.stderr)) if model == demo.NAME else model


def shown_name(model: str) -> str:
    """Return what rows call a model: a folder by its own name, so that no path of this machine gets into them."""
    return Path(model).resolve().name if Path(model).exists() else model
