"""Two engines without a model, which answer from the prompt's own text: for tests, and for checking a set.

`oracle` finds every record; `first-record` always gives the first one, as a model does that lost the question.
"""

import re

import transformers

from engines.errors import EngineError
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request

_RECORD = re.compile(r"record (\d+) is (\d{6})\.", re.IGNORECASE)
_ASKED = re.compile(r"record (\d+)", re.IGNORECASE)


class OracleEngine:
    """Answers with the code of the record that the prompt asks for last."""

    name = "oracle"

    def __init__(self, options: EngineOptions) -> None:
        """Load only the tokenizer of `options.model`."""
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(options.model))
        except (OSError, ValueError) as error:
            raise EngineError(f"--model {options.model_name!r} has no tokenizer that transformers can load") from error
        self._model_name = options.model_name

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return EngineInfo(self.name, self._model_name, None, None, versions={"transformers": transformers.__version__})

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return ids

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Read the prompt's text and answer."""
        text = self._tokenizer.decode(list(request.ids))
        records = {int(number): code for number, code in _RECORD.findall(text)}
        asked = int(_ASKED.findall(text)[-1])
        on_read(len(request.ids))
        reply = self._answer(records, asked)
        return Completion(text=reply, ids=self.encode(reply))

    def _answer(self, records: dict[int, str], asked: int) -> str:
        return records[asked]


class FirstRecordEngine(OracleEngine):
    """Answers with the code of the first record, whatever is asked."""

    name = "first-record"

    def _answer(self, records: dict[int, str], asked: int) -> str:
        return records[min(records)]
