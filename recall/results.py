"""The result row: what one engine answered to one prompt, as a line of JSONL, and the file of them.

Rows are appended and flushed one by one, so a stopped run loses at most the row it was in the middle of.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Literal, TextIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recall.errors import RecallError


class Outcome(StrEnum):
    """What a reply turned out to be."""

    FOUND = "found"  # the asked record's code
    OTHER_RECORD = "other-record"  # another record's code
    NO_RECORD = "no-record"  # a code that no record has
    SEVERAL_CODES = "several-codes"
    NO_CODE = "no-code"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Agreement(_Strict):
    """What a reference answered to the same prompt, and whether this row's answer is the same, right or wrong."""

    answer: str | None
    outcome: Outcome | None
    same: bool | None = Field(description="null when one of the two engines gave no reply")


class ResultRow(_Strict):
    """One prompt, one engine. A field that a published run does not tell is null, never a guess."""

    prompt_id: str
    prompt_sha256: str | None = Field(default=None, description="of the ids; null where they were not published")
    engine: str
    model: str
    dtype: str | None = None
    device: str | None = None
    settings: dict[str, str | int | bool | None] = Field(
        default_factory=dict, description="of the engine, beside these"
    )
    context: int = Field(description="tokens that the engine held room for")
    prompt_tokens: int
    max_new: int | None = Field(default=None, description="the most tokens that the answer could have")
    records: int = Field(description="in the prompt")
    asked_record: int
    code: str = Field(description="of the asked record")
    answer: str | None = Field(description="the one six-digit code in the reply; null: none, or several")
    codes: list[str] = Field(description="every different code in the reply, in order")
    outcome: Outcome | None = Field(description="null when the engine gave no reply")
    found: bool
    record: int | list[int] | None = Field(description="that the answer belongs to; a list when several share it")
    reply: str | None
    reply_ids: list[int] | None = None
    agreement: dict[str, Agreement] = Field(default_factory=dict, description="by reference")
    read_s: float | None = None
    read_tok_s: float | None = None
    decode_tok_s: float | None = Field(default=None, description="tokens after the first, over their time")
    cache_bytes: int | None = None
    graphs: int | None = Field(default=None, description="that the compiler has made of the engine so far")
    breaks: int | None = Field(default=None, description="places where the compiler cut a program in two")
    status: Literal["ok", "error"] = "ok"
    note: str | None = Field(default=None, description="why status is not ok")
    versions: dict[str, str] = Field(default_factory=dict)

    def answers(self, sha256: str | None, records: int, asked_record: int, code: str) -> bool:
        """Return whether this row answers the prompt so described; ids that one side does not tell are no hindrance."""
        same_ids = None in (sha256, self.prompt_sha256) or sha256 == self.prompt_sha256
        return same_ids and (records, asked_record, code) == (self.records, self.asked_record, self.code)


def read_results(path: Path) -> list[ResultRow]:
    """Read a results file.

    Raises:
        RecallError: naming the file and the line, for a line that is no result row or a prompt that came before.
    """
    text = _read_text(path)
    rows: dict[str, ResultRow] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = ResultRow.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the line"
            raise RecallError(
                f"{path}, line {number}: not a result row ({place}: {first['msg']}); give a file written by "
                "`recall score`"
            ) from error
        if row.prompt_id in rows:
            raise RecallError(
                f"{path}, line {number}: prompt {row.prompt_id!r} came before; remove one of the two rows"
            )
        rows[row.prompt_id] = row
    return list(rows.values())


def set_aside_torn_line(path: Path) -> Path | None:
    """Move a last line that was cut off in writing to a file beside `path` and return that file; None: none was."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return None
    aside = path.with_name(path.name + ".torn")
    aside.write_bytes(content[whole:])
    with path.open("r+b") as rows:
        rows.truncate(whole)
    return aside


@contextmanager
def appending(path: Path) -> Iterator["ResultWriter"]:
    """Open a results file for more rows.

    Raises:
        RecallError: when the file cannot be written.
    """
    try:
        lines = path.open("a", encoding="utf-8", newline="\n")
    except OSError as error:
        raise RecallError(f"{path}: cannot be written ({error.strerror}); give another -o") from error
    with lines:
        yield ResultWriter(lines)


class ResultWriter:
    """Appends rows; each is on its way to the disk before the next prompt is read."""

    def __init__(self, lines: TextIO) -> None:
        """Write to `lines`."""
        self._lines = lines

    def write(self, row: ResultRow) -> None:
        """Append one row and flush it."""
        self._lines.write(row.model_dump_json() + "\n")
        self._lines.flush()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecallError(
            f"{path}: cannot be read ({error.strerror}); give a file written by `recall score`"
        ) from error
    except UnicodeDecodeError as error:
        raise RecallError(f"{path}: is not UTF-8 text; give a file written by `recall score`") from error
