"""Answers read from a results file: a run made elsewhere, or long ago, is an engine like any other."""

import json
from pathlib import Path
from typing import Any

from engines.errors import EngineError
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request


class RecordedEngine:
    """Looks the answer up by the prompt's id; it reads no ids."""

    def __init__(self, options: EngineOptions) -> None:
        """Read the results file `options.model`."""
        self._path = Path(options.model)
        self._rows = self._read()
        first = next(iter(self._rows.values()))
        self._info = EngineInfo(
            engine="recorded",
            model=options.model_name,
            dtype=first.get("dtype"),
            device=first.get("device"),
            settings=first.get("settings") or {},
            versions=first.get("versions") or {},
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
        if row.get("status") == "error":
            raise EngineError(f"{self._path}: the recorded run gave no answer to it ({row.get('note')})")
        return Completion(text=row.get("reply") or row.get("answer") or "", ids=row.get("reply_ids"))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line) for line in lines if line.strip()]
            by_prompt = {row["prompt_id"]: row for row in rows}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"--model {str(self._path)!r} is no results file ({type(error).__name__}: {error}); give one written "
                "by `recall score`, or the name of a published one"
            ) from error
        if not by_prompt:
            raise EngineError(f"--model {str(self._path)!r} holds no rows")
        return by_prompt
