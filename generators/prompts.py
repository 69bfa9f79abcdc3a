"""The prompt row: everything one prompt is, as a line of JSONL that can be made again from its own fields."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from generators.errors import GeneratorError
from generators.lines import Name, first_complaint, numbered_lines, shown
from generators.records import STOP, TEMPLATE_NAME, TEMPLATE_VERSION, Format, draws
from generators.tasks import BY_TEMPLATE, Task

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


# More records than any context holds, and few enough to draw their codes in seconds.
_MOST_DRAWS = 10_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TokenizerName(_Strict):
    """Which tokenizer counted a prompt: its name, and a fingerprint of its vocabulary."""

    name: str
    fingerprint: str


class TemplateName(_Strict):
    """Which wording a prompt has, and so which task it is."""

    name: str = TEMPLATE_NAME
    version: int = TEMPLATE_VERSION

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if (self.name, self.version) not in BY_TEMPLATE:
            raise ValueError(f"no task has wording {self.name!r} of version {self.version}")
        return self


class Prompt(_Strict):
    """One prompt. In a manifest `text` is left out: the other fields make it again."""

    id: Name = Field(description="names the prompt in result rows; unique in its set")
    seed: int = Field(ge=0, description="of the source of the codes")
    order: int = Field(ge=1, description="its place among the prompts of its context, from 1")
    context: int = Field(ge=1, description="tokens that the engine is to hold: the prompt and its answer")
    budget: int | None = Field(ge=1, description="tokens for the prompt and `answer_room`; null: least possible")
    answer_room: int = Field(ge=0, description="tokens of the budget that are kept free for the answer")
    depth: float | None = Field(ge=0, le=1, description="of the asked record; null when it was named by number")
    format: Format
    records: int = Field(ge=1, le=_MOST_DRAWS, description="how many records it holds")
    record: int = Field(ge=1, description="number of the asked record, from 1")
    asked_records: list[int] | None = Field(
        default=None, description="of task several: all asked records in the order asked, `record` in front"
    )
    code: str = Field(pattern=r"^\d{6}$", description="of the asked record")
    first_draw: int = Field(ge=0, le=_MOST_DRAWS, description="draws of the seed that went to prompts before this one")
    prompt_tokens: int = Field(ge=1)
    tokenizer: TokenizerName
    template: TemplateName
    sha256: Sha256 = Field(description="of the ids, as little-endian 32-bit integers")
    text: str | None = Field(default=None, description="complete: BOS mark and turn markers are in it")

    @model_validator(mode="after")
    def _asks_for_its_records(self) -> Self:
        asked, several = self.asked_records, self.task.gives == "codes"
        if several != (asked is not None):
            raise ValueError(f"asked_records {'is missing' if several else 'is for task several only'}")
        if asked is not None:
            among = all(1 <= number <= self.records for number in asked)
            if asked[:1] != [self.record] or len(set(asked)) < len(asked) or not among:
                raise ValueError("asked_records are not different records of this prompt, the asked one in front")
        return self

    @model_serializer(mode="wrap")
    def _as_ever(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what rows of one asked record never had: the bytes of a set are a promise."""
        row: dict[str, Any] = fields(self)
        if self.asked_records is None:
            row.pop("asked_records", None)
        return row

    @property
    def task(self) -> Task:
        """What is asked about its records."""
        return BY_TEMPLATE[self.template.name, self.template.version]

    @property
    def asked(self) -> list[int]:
        """The numbers of its asked records, in the order asked; `record` is the first."""
        return self.asked_records or [self.record]

    @property
    def stop(self) -> str | None:
        """The text that ends an answer to this prompt, beside the model's own end tokens."""
        return STOP[self.format]

    def codes(self) -> list[str]:
        """Return the codes of all its records, in their order, drawn again from the seed and changed by the task."""
        codes = list(islice(draws(self.seed), self.first_draw, self.first_draw + self.records))
        place = self.first_draw + self.record - 1
        for number, code in self.task.changes(self.seed, place, self.record, self.code, self.records).items():
            codes[number - 1] = code
        return codes

    def lines(self) -> list[str]:
        """Return the lines of all its records, in their order."""
        return [self.task.line(number, code) for number, code in enumerate(self.codes(), 1)]

    def message(self) -> str:
        """Return its bare text, records and question, without BOS and turn markers."""
        return "".join(self.lines()) + self.task.question(self.asked, self.code, self.format)

    def draws_its_code(self) -> bool:
        """Return whether the asked record is one of its records, and its code the one that the seed draws for it."""
        place = self.first_draw + self.record - 1
        return self.record <= self.records and next(islice(draws(self.seed), place, None)) == self.code

    def manifest_line(self) -> "Prompt":
        """Return this prompt without its text."""
        return self.model_copy(update={"text": None})


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> int:
    """Write prompts as JSONL (UTF-8, one a line) and return how many; the file appears only when complete.

    Raises:
        GeneratorError: when the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    count = 0
    try:
        lines = part.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise GeneratorError(f"{path}: cannot be written ({error.strerror}); give another -o") from error
    try:
        with lines:
            for prompt in prompts:
                lines.write(prompt.model_dump_json(exclude={"text"} if prompt.text is None else None) + "\n")
                count += 1
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def read_prompts(path: Path) -> list[Prompt]:
    """Read a prompt set or a manifest.

    Raises:
        GeneratorError: naming the file and the line, for a line that is no prompt row, an id that came before, or a
            code that the seed does not draw for the asked record.
    """
    prompts: dict[str, Prompt] = {}
    for number, line in numbered_lines(path, "give a file made by `recall generate`"):
        try:
            prompt = Prompt.model_validate_json(line)
        except ValidationError as error:
            raise GeneratorError(
                f"{path}, line {number}: not a prompt row ({first_complaint(error)}); make the set again with "
                "`recall generate`"
            ) from error
        if prompt.id in prompts:
            raise GeneratorError(f"{path}, line {number}: id {shown(prompt.id)!r} came before; each needs its own")
        if not prompt.draws_its_code():
            raise GeneratorError(
                f"{path}, line {number}: seed {prompt.seed} does not draw code {prompt.code} for record "
                f"{prompt.record} of {prompt.records}; make the set again with `recall generate`"
            )
        prompts[prompt.id] = prompt
    if not prompts:
        raise GeneratorError(f"{path}: holds no prompts; make a set with `recall generate`")
    return list(prompts.values())
