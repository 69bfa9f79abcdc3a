"""Sorts the wrong answers of a run: whose code was given, how far from the asked record, inside the window or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from recall.results import Outcome, ResultRow

# A code drawn at random comes this near to another one in 1269 of a million cases: 6 * 9 with one other digit, and
# 15 * 81 with two. So a near miss is a code that was read wrongly, not one that was made up. Two digits, since two
# neighbours that changed their places differ in two.
_NEAR = 2


class Kind(StrEnum):
    """What a wrong answer is."""

    INSIDE_WINDOW = "other-record-inside-window"  # the code of another record, which the sliding layers saw
    OUTSIDE_WINDOW = "other-record-outside-window"  # of one that begins before the last `window` tokens
    OTHER_RECORD = "other-record"  # of one of which nobody knows whether it was inside
    NEAR_MISS = "near-miss"  # a code that no record has, the asked one but for one or two digits
    NO_RECORD = "no-record"  # any other code that no record has
    PARTIAL = "partial"  # of several asked codes, some; or all, but in another order or with others among them
    SEVERAL_CODES = "several-codes"
    NO_CODE = "no-code"


WORDS = {
    Kind.INSIDE_WINDOW: "another record's code, inside the window",
    Kind.OUTSIDE_WINDOW: "another record's code, outside the window",
    Kind.OTHER_RECORD: "another record's code",
    Kind.NEAR_MISS: "a code that no record has, 1 or 2 digits from the right one",
    Kind.NO_RECORD: "a code that no record has",
    Kind.PARTIAL: "some of several asked codes",
    Kind.SEVERAL_CODES: "several codes",
    Kind.NO_CODE: "no code",
}


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer, and how far behind the asked record the given one stands: negative when it stands before it.

    Of several records with the given code it is the one nearest to the asked one.
    """

    prompt_id: str
    kind: Kind
    records: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class WrongAnswers:
    """The wrong answers of a run: how many of each kind, and each of them."""

    counts: dict[Kind, int]
    answers: list[WrongAnswer]


def wrong_answers(rows: Sequence[ResultRow]) -> WrongAnswers:
    """Sort the wrong answers among `rows`; a row whose status is not ok is none."""
    answers = [_sorted(row, row.outcome) for row in rows if row.status == "ok" and row.outcome and not row.found]
    return WrongAnswers({kind: sum(answer.kind is kind for answer in answers) for kind in Kind}, answers)


def near_miss(given: str, asked: str) -> bool:
    """Return whether two different codes are the same but for one or two digits; what has another length is none."""
    if len(given) != len(asked):
        return False
    return given != asked and sum(mine != theirs for mine, theirs in zip(given, asked, strict=True)) <= _NEAR


def _sorted(row: ResultRow, outcome: Outcome) -> WrongAnswer:
    if outcome is Outcome.NO_RECORD:
        near = row.answer is not None and near_miss(row.answer, row.code)
        return WrongAnswer(row.prompt_id, Kind.NEAR_MISS if near else Kind.NO_RECORD)
    if outcome is not Outcome.OTHER_RECORD or row.record is None:
        return WrongAnswer(row.prompt_id, Kind(outcome))
    given = row.record if isinstance(row.record, list) else [row.record]
    records = min((number - row.asked_record for number in given), key=abs)
    tokens = None
    if row.asked_from_end is not None and row.answer_from_end is not None:
        tokens = row.asked_from_end - row.answer_from_end
    return WrongAnswer(row.prompt_id, _where(row), records, tokens)


def _where(row: ResultRow) -> Kind:
    if row.window is None or row.answer_from_end is None:
        return Kind.OTHER_RECORD
    # The last token of the prompt looks back on `window` positions, its own among them.
    return Kind.INSIDE_WINDOW if row.answer_from_end <= row.window else Kind.OUTSIDE_WINDOW
