"""Finds the data that ships with the project: prompt-set manifests and published results, by name.

In a checkout they lie in `datasets/` and `results/`; an installed `recall` carries both inside its package.
"""

from pathlib import Path
from typing import Literal

from recall.errors import RecallError

Kind = Literal["datasets", "results"]

_PACKAGE = Path(__file__).parent


def folder(kind: Kind) -> Path:
    """Return the folder of published manifests (`datasets`) or result rows (`results`)."""
    installed = _PACKAGE / "published" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def names(kind: Kind) -> list[str]:
    """Return the names of what is published."""
    return sorted(file.stem for file in folder(kind).glob("*.jsonl"))


def results_file(name: str) -> Path:
    """Return the results file that `name` means: a path, or the name of a published run.

    Raises:
        RecallError: when it is neither.
    """
    return _file("results", name, "neither a results file nor a published run")


def prompts_file(name: str) -> Path:
    """Return the prompt set or manifest that `name` means: a path, or the name of a published set.

    Raises:
        RecallError: when it is neither.
    """
    return _file("datasets", name, "neither a prompt set nor a published one")


def _file(kind: Kind, name: str, neither: str) -> Path:
    if Path(name).is_file():
        return Path(name)
    if name in names(kind):
        return folder(kind) / f"{name}.jsonl"
    raise RecallError(f"{name!r} is {neither}: give a path, or one of {', '.join(names(kind))}")
