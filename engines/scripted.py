"""Two engines without a model, which answer from the prompt's own text: for tests, and for checking a set.

`oracle` finds every record, whatever the task; `first-record` always gives the first one, as a model does that lost
the question.
"""

import re

import transformers

from engines.errors import EngineError
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request

_RECORD = re.compile(r"(?:record (\d+) is|Datensatz (\d+) lautet) (\d{6})\.")
# What a question asks for: a record by its code, or codes by records.
_CODE = re.compile(r"code (\d{6})")
_ASKED = re.compile(r"(?:[Rr]ecords?|Datensatz) (\d+(?:(?:, | and )\d+)*)")


class OracleEngine:
    """Answers with the codes of the records that the prompt asks for last, or with the record of the code."""

    name = "oracle"

    def __init__(self, options: EngineOptions) -> None:
        """Load only the tokenizer of `options.model`."""
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(options.model), trust_remote_code=False)
        except Exception as error:  # of every kind: whatever transformers stumbles over in a damaged folder
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
        records = {english or german: code for english, german, code in _RECORD.findall(text)}
        code = _CODE.search(text)
        asked = self._asked(records, text, code and code[1])
        on_read(len(request.ids))
        reply = ", ".join(number if code else records[number] for number in asked)
        return Completion(text=reply, ids=self.encode(reply), tokens_read=len(request.ids), finish="stop")

    def _asked(self, records: dict[str, str], text: str, code: str | None) -> list[str]:
        """Return the numbers of the records to answer with, as they are printed."""
        if code is None:
            return re.findall(r"\d+", _ASKED.findall(text)[-1])
        return [next(number for number, other in records.items() if other == code)]


class FirstRecordEngine(OracleEngine):
    """Answers with the first record, whatever is asked."""

    name = "first-record"

    def _asked(self, records: dict[str, str], text: str, code: str | None) -> list[str]:
        return [next(iter(records))]
