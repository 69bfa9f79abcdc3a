"""The numbered records: how their codes are drawn and how they are worded. No tokenizer, no file.

The draws are those of the published laptop run: Python's `random.Random(seed)` and one
`randint(100000, 999999)` a record. The wording is this project's own. With Gemma's tokenizer (a digit is a
token) a record costs 30 tokens whatever its number, and the question for one, in a chat turn with its BOS, 31.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

Format = Literal["chat", "completion"]

TEMPLATE_NAME = "records"
TEMPLATE_VERSION = 1

# A completion ends with its line; a chat reply ends when the model ends its turn.
STOP: dict[Format, str | None] = {"chat": None, "completion": "\n"}


def draws(seed: int) -> Iterator[str]:
    """Yield the six-digit codes of `seed`, without end."""
    source = random.Random(seed)
    while True:
        yield str(source.randint(100_000, 999_999))


def asked_record(records: int, depth: float) -> int:
    """Return the number (from 1) of the record that lies `depth`, from 0 to 1, of the way into `records`.

    At depth 0.25 this is the laptop set's `max(1, records // 4)`. The depth counts as the decimal it is written
    as, so that 0.29 of 100 records is record 29 and not, by binary rounding, record 28.
    """
    return max(1, int(records * Fraction(str(depth))))


def record_line(number: int, code: str) -> str:
    """Return the line of one record."""
    return f"{_opening(number)} {code}.\n"


def question(number: int, form: Format) -> str:
    """Return the text after the records that asks for the code of record `number`.

    For a chat model it is a question; for a base model it is the record's own line, broken off before the code.
    """
    if form == "completion":
        return _opening(number)
    return f"What is the secret access code of record {number:05d}? Answer with the six digits only."


def _opening(number: int) -> str:
    return f"Record {number:05d}: the secret access code of record {number:05d} is"
