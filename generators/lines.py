"""Reads the rows of a JSONL file by line; what is wrong with one is told in a sentence that a terminal can show."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationError

from generators.errors import GeneratorError

_MOST = 200  # characters of a file's content that a sentence repeats


def _is_name(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("give characters that can be printed")
    return text


# What tables and sentences call a row by.
Name = Annotated[str, AfterValidator(_is_name)]


def numbered_lines(path: Path, give: str) -> Iterator[tuple[int, str]]:
    """Yield every line that is not blank, with its number from 1.

    A byte order mark in front of the first line and line ends of CR and LF, as editors on Windows write them, are no
    part of a row.

    Args:
        path: the file.
        give: what to give instead, for the errors.

    Raises:
        GeneratorError: naming the file when it cannot be read, and the line that is not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GeneratorError(f"{path}: cannot be read ({error.strerror}); {give}") from error
    # Not `splitlines`: a text may hold line separators other than the one that ends a row.
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise GeneratorError(f"{path}, line {number}: is not UTF-8 text; {give}, or save it as UTF-8") from error
        if text.strip():
            yield number, text


def first_complaint(error: ValidationError) -> str:
    """Return the first thing that is wrong with a row: the field and what it should be."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the line"
    return f"{shown(place)}: {shown(first['msg'])}"


def shown(text: str, most: int = _MOST) -> str:
    r"""Return a text from a file as a sentence may repeat it: cut, and with what cannot be printed as `\x1b`."""
    cut = text if len(text) <= most else f"{text[:most]}..."
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)
