"""The result row: what one engine answered to one prompt, as a line of JSONL, and the file of them."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from generators import GeneratorError
from generators.lines import Name, first_complaint, numbered_lines, shown
from recall.errors import RecallError


class Outcome(StrEnum):
    """What a reply turned out to be."""

    FOUND = "found"  # the asked record's code
    OTHER_RECORD = "other-record"  # another record's code
    NO_RECORD = "no-record"  # a code that no record has
    PARTIAL = "partial"  # one or more codes of several asked records, but not all of them and these alone, in order
    SEVERAL_CODES = "several-codes"
    NO_CODE = "no-code"


# A code, or a record's number as five digits; and all that a reply gave of them, with commas between.
Code = Annotated[str, Field(pattern=r"^[0-9]{5,6}$")]
Answer = Annotated[str, Field(pattern=r"^[0-9]{5,6}(, [0-9]{5,6})*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Agreement(_Strict):
    """What a reference answered to the same prompt, and whether this row's answer is the same, right or wrong."""

    answer: Answer | None
    outcome: Outcome | None
    same: bool | None = Field(description="null when one of the two engines gave no reply")


class AnswerToken(_Strict):
    """One token of a reply, and what else the model thought of at its place."""

    id: int
    logprob: float = Field(description="natural logarithm of its probability")
    runner_up: int | None = Field(description="the likeliest other token")
    margin: float | None = Field(description="logprob less the runner-up's: the difference of their logits")
    top: list[tuple[int, float]] = Field(description="the likeliest tokens with their logprobs, the likeliest first")


class ResultRow(_Strict):
    """One prompt, one engine. A field that a published run does not tell is null, never a guess."""

    prompt_id: Name
    prompt_sha256: str | None = Field(default=None, description="of the ids; null where they were not published")
    engine: Name
    model: Name
    fingerprint: str | None = Field(default=None, description="of the weights; null where they were not at hand")
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
    task: str = Field(default="record", description="what was asked about the records")
    asked_records: list[int] | None = Field(
        default=None, description="all asked records in the order asked, asked_record in front; null: that one only"
    )
    seed: int | None = Field(default=None, description="of the records; prompts of one seed share them")
    budget: int | None = Field(default=None, description="tokens that prompt and answer were to have at most")
    depth: float | None = Field(default=None, description="of the asked record, a share of the way in")
    code: Code = Field(description="of the asked record")
    answer: Answer | None = Field(
        description="the one six-digit code in the reply (task reverse: record number, as five digits; task several: "
        "all codes, with commas between); null: none, or several where one was asked for"
    )
    codes: list[Code] = Field(description="every different code (task reverse: record number) in the reply, in order")
    outcome: Outcome | None = Field(description="null when the engine gave no reply")
    found: bool
    asked_found: int | None = Field(
        default=None, description="of several asked records: how many codes of theirs are in the reply, in any order"
    )
    record: int | list[int] | None = Field(
        description="that the answer belongs to; a list when several share it; of several asked ones, all of them "
        "found, the first"
    )
    reply: str | None
    reply_ids: list[int] | None = None
    answer_tokens: list[AnswerToken] | None = Field(default=None, description="one for each of reply_ids")
    finish: Literal["stop", "length"] | None = Field(default=None, description="how the reply ended; null: untold")
    tokens_sent: int | None = Field(default=None, description="ids that the engine was given; null: it got text")
    tokens_read: int | None = Field(default=None, description="that the engine says its prompt had")
    window: int | None = Field(default=None, description="positions that the model's sliding layers look back")
    asked_from_end: int | None = Field(
        default=None, description="tokens from the asked record's first one to the prompt's end"
    )
    answer_from_end: int | None = Field(default=None, description="the same of the record that the answer belongs to")
    agreement: dict[str, Agreement] = Field(default_factory=dict, description="by reference")
    read_s: float | None = None
    read_tok_s: float | None = None
    decode_tok_s: float | None = Field(default=None, description="tokens after the first, over their time")
    cache_bytes: int | None = None
    graphs: int | None = Field(default=None, description="that the compiler has made of the engine so far")
    breaks: int | None = Field(default=None, description="places where the compiler cut a program in two")
    status: Literal["ok", "invalid", "error"] = Field(
        default="ok", description="invalid: an answer, but not to the whole prompt, or not to its end; error: no answer"
    )
    note: str | None = Field(default=None, description="why status is not ok, or what is odd")
    versions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_found_by_its_outcome(self) -> Self:
        if self.found != (self.outcome is Outcome.FOUND):
            raise ValueError(f"found is {self.found}, and outcome is {self.outcome}")
        return self

    @property
    def cut_off(self) -> bool:
        """Whether the engine read the whole prompt, and its answer was cut off before it gave a code."""
        sent = self.prompt_tokens if self.tokens_sent is None else self.tokens_sent
        return self.status == "invalid" and self.finish == "length" and self.tokens_read == sent

    @property
    def failed(self) -> bool:
        """Whether no answer came, or one to another prompt; a model that went on and on has not failed so."""
        return self.status != "ok" and not self.cut_off

    def answers(self, sha256: str | None, records: int, asked_record: int, code: str) -> bool:
        """Return whether this row answers the prompt so described; ids that one side does not tell are no hindrance."""
        same_ids = None in (sha256, self.prompt_sha256) or sha256 == self.prompt_sha256
        return same_ids and (records, asked_record, code) == (self.records, self.asked_record, self.code)


def read_results(path: Path) -> list[ResultRow]:
    """Read a results file.

    Raises:
        RecallError: naming the file and the line, for a line that is no result row or a prompt that came before.
    """
    rows: dict[str, ResultRow] = {}
    for number, line in _lines(path):
        try:
            row = ResultRow.model_validate_json(line)
        except ValidationError as error:
            raise RecallError(
                f"{path}, line {number}: not a result row ({first_complaint(error)}); give a file written by "
                "`recall score`"
            ) from error
        if row.prompt_id in rows:
            raise RecallError(
                f"{path}, line {number}: prompt {shown(row.prompt_id)!r} came before; remove one of the two rows"
            )
        rows[row.prompt_id] = row
    return list(rows.values())


def write_results(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write a whole results file; it takes its place only when it is complete.

    Raises:
        RecallError: when the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        lines = part.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise RecallError(f"{path}: cannot be written ({error.strerror}); give another -o") from error
    try:
        with lines:
            lines.writelines(f"{row.model_dump_json()}\n" for row in rows)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        yield from numbered_lines(path, "give a file written by `recall score`")
    except GeneratorError as error:
        raise RecallError(str(error)) from error
