"""What a model's name on the command line means: where it is loaded from, and what rows call it."""

import sys
from pathlib import Path

from generators.lines import shown
from recall import demo, published


def resolve(model: str, engine: str = "ring") -> str | Path:
    """Return what `engine` loads for a name: a file or folder of the demo model, or the name as it is.

    Raises:
        RecallError: when the demo model is not installed, or the name is no results file where one is needed.
    """
    if engine == "recorded":
        return published.results_file(model)
    if model != demo.NAME or engine == "server":
        return model
    make = demo.demo_gguf if engine == "llama.cpp" else demo.demo_folder
    return make(lambda text: print(text, file=sys.stderr))


def shown_name(model: str) -> str:
    """Return what rows call a model: a file or folder by its own name, so that no path of this machine gets in."""
    path = Path(model)
    if path.is_file():
        return shown(path.stem)
    return shown(path.resolve().name if path.exists() else model)
