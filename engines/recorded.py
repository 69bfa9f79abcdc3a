"""Answers read from a results file: a run made elsewhere, or long ago, is an engine like any other."""

import codecs
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from engines.errors import EngineError
from engines.protocol import Completion, EngineInfo, EngineOptions, Finish, OnRead, Request, Setting

_SHOWN = 200  # characters of a file's content that an error repeats


class _Row(BaseModel):
    """What is read of a result row; the rest of it is judged anew."""

    model_config = ConfigDict(strict=True)

    prompt_id: str
    reply: str | None = None
    answer: str | None = None
    reply_ids: list[int] | None = None
    prompt_tokens: int | None = None
    tokens_read: int | None = None
    finish: Finish | None = None
    status: Literal["ok", "invalid", "error"] = "ok"
    note: str | None = None
    dtype: str | None = None
    device: str | None = None
    settings: dict[str, Setting] = {}
    versions: dict[str, str] = {}


class RecordedEngine:
    """Looks the answer up by the prompt's id; it reads no ids."""

    def __init__(self, options: EngineOptions) -> None:
        """Read the results file `options.model`.

        Raises:
            EngineError: naming the file and the line, for a line that is no result row or a prompt that came before.
        """
        self._path = Path(options.model)
        self._rows = self._read()
        first = next(iter(self._rows.values()))
        self._info = EngineInfo(
            engine="recorded",
            model=options.model_name,
            dtype=first.dtype,
            device=first.device,
            settings=first.settings,
            versions=first.versions,
        )

    @property
    def info(self) -> EngineInfo:
        """What made the answers, under the name of the file."""
        return self._info

    def encode(self, text: str) -> None:
        """Return None: the answers are there already."""
        return

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Return the recorded reply, or the bare answer where only that was published."""
        row = self._rows.get(request.prompt_id)
        if row is None:
            raise EngineError(f"{self._path} holds no answer to prompt {request.prompt_id!r}; leave it out with --only")
        if row.status != "ok":
            raise EngineError(f"{self._path}: the recorded run gave no valid answer to it ({row.note})")
        return Completion(
            text=row.reply or row.answer or "",
            ids=row.reply_ids,
            # A published run tells of its prompts' lengths what it counted itself.
            tokens_read=row.tokens_read or row.prompt_tokens,
            finish=row.finish,
        )

    def _read(self) -> dict[str, _Row]:
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise self._error("", f"cannot be read ({error.strerror})") from error
        rows: dict[str, _Row] = {}
        for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                row = _Row.model_validate_json(line)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                place = ".".join(str(part) for part in first["loc"]) or "the line"
                why = f"not a result row ({place[:_SHOWN]!r}: {first['msg'][:_SHOWN]})"
                raise self._error(f", line {number}", why) from error
            if row.prompt_id in rows:
                raise self._error(f", line {number}", f"prompt {row.prompt_id[:_SHOWN]!r} came before")
            rows[row.prompt_id] = row
        if not rows:
            raise self._error("", "holds no rows")
        return rows

    def _error(self, where: str, why: str) -> EngineError:
        return EngineError(
            f"--model {self._path}{where}: {why}; give a file written by `recall score`, or the name of a published run"
        )
