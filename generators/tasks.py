"""The tasks: what is asked about the records. A task is its wording, its changes of codes, and what an answer gives.

`record`, `several` and `reverse` have the same lines, so their prompts of one seed share all their records. `near`
changes a few codes about the asked record: its prompts are alike up to the first of these. `german` has lines of its
own, without padding: a record costs more tokens when its number has more digits.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from generators.records import TEMPLATE_NAME, TEMPLATE_VERSION, Format, question, record_line

TaskName = Literal["record", "several", "reverse", "near", "german"]
Gives = Literal["code", "codes", "number"]
Item = TypeVar("Item")

ASKED = 3
NEAR_REACH = 8
NEAR_COUNT = 4


@dataclass(frozen=True)
class Task:
    """What is asked about the records, and how it is put.

    Attributes:
        name: of the task.
        template: names its wording in a prompt row.
        version: of wording and changes; another one where a prompt would come out otherwise.
        gives: what a right answer is: the code of the asked record, the codes of all asked ones in the order asked, or
            the number of a record that has the given code.
        line: the line of a record, by its number and code.
        question: the text after the records, by the asked records, the code of the first of them, and the format.
        changes: the codes that take the place of drawn ones, by record: of the seed, the place of the asked record's
            draw (from 0), its number, its code, and how many records there are.
    """

    name: TaskName
    template: str
    version: int
    gives: Gives
    line: Callable[[int, str], str]
    question: Callable[[Sequence[int], str, Format], str]
    changes: Callable[[int, int, int, str, int], dict[int, str]]


def spread(first: int, records: int, count: int) -> list[int]:
    """Return `count` different records, `first` in front: evenly from there on, and from the end on to the beginning.

    Of fewer records than `count` it returns them all.
    """
    count = min(count, records)
    return [(first - 1 + place * records // count) % records + 1 for place in range(count)]


def near_codes(seed: int, place: int, record: int, code: str, records: int) -> dict[int, str]:
    """Return the codes of the records that `near` changes: each the asked code but for one digit, no two alike.

    Of the 8 records on either side of the asked one, four are changed, or as many as there are. Which, at which digit
    and to which digit is drawn from `random.Random(f"near {seed} {place}")`: first an order of the 16 steps from the
    asked record, then one of the 53 codes; the first step has the first code, and steps to no record are left out. No
    code begins with a zero.
    """
    source = random.Random(f"near {seed} {place}")
    steps = _shuffled(source, [step for step in range(-NEAR_REACH, NEAR_REACH + 1) if step])
    variants = _shuffled(source, _one_digit_off(code))
    pairs = zip(steps, variants, strict=False)
    chosen = [(record + step, variant) for step, variant in pairs if 1 <= record + step <= records]
    return dict(sorted(chosen[:NEAR_COUNT]))


def _one_digit_off(code: str) -> list[str]:
    digits = [(at, digit) for at in range(len(code)) for digit in "0123456789" if digit != code[at]]
    return [code[:at] + digit + code[at + 1 :] for at, digit in digits if (at, digit) != (0, "0")]


def _shuffled(source: random.Random, items: list[Item]) -> list[Item]:
    # By `randrange`, of which the draws of the codes are made, too: then one promise of Python's holds for both.
    return [items.pop(source.randrange(len(items))) for _ in range(len(items))]


def _no_changes(seed: int, place: int, record: int, code: str, records: int) -> dict[int, str]:
    return {}


def _ask_record(asked: Sequence[int], code: str, form: Format) -> str:
    return question(asked[0], form)


def _ask_several(asked: Sequence[int], code: str, form: Format) -> str:
    *others, last = (f"{number:05d}" for number in asked)
    numbers = f"{', '.join(others)} and {last}" if others else last
    if form == "completion":
        return f"Records {numbers}: the secret access codes of records {numbers}, in this order, are"
    return (
        f"What are the secret access codes of records {numbers}, in this order? Answer with the six-digit codes only."
    )


def _ask_reverse(asked: Sequence[int], code: str, form: Format) -> str:
    if form == "completion":
        return f"Code {code}: the secret access code {code} is that of record"
    return f"Which record has the secret access code {code}? Answer with the five digits of its number only."


def _german_line(number: int, code: str) -> str:
    return f"{_german_opening(number)} {code}.\n"


def _ask_german(asked: Sequence[int], code: str, form: Format) -> str:
    if form == "completion":
        return _german_opening(asked[0])
    return f"Wie lautet der geheime Zugangscode von Datensatz {asked[0]}? Antworte nur mit den sechs Ziffern."


def _german_opening(number: int) -> str:
    return f"Datensatz {number}: Der geheime Zugangscode von Datensatz {number} lautet"


RECORD = Task("record", TEMPLATE_NAME, TEMPLATE_VERSION, "code", record_line, _ask_record, _no_changes)
TASKS: dict[TaskName, Task] = {
    "record": RECORD,
    "several": Task("several", "several", 1, "codes", record_line, _ask_several, _no_changes),
    "reverse": Task("reverse", "reverse", 1, "number", record_line, _ask_reverse, _no_changes),
    "near": Task("near", "near", 1, "code", record_line, _ask_record, near_codes),
    "german": Task("german", "german", 1, "code", _german_line, _ask_german, _no_changes),
}
BY_TEMPLATE = {(task.template, task.version): task for task in TASKS.values()}
