"""A wrong answer is sorted by whose code it is, how far away that stands, and whether the window still held it."""

from typing import Any

import pytest

from recall.results import ResultRow
from recall.wrong_answers import Kind, WrongAnswer, near_miss, wrong_answers
from tests.made_rows import ASKED, CODES, OTHER, RIGHT, failed_row, made_row

WINDOW = 512


def _only(row: ResultRow) -> WrongAnswer:
    sorted_out = wrong_answers([row])
    (answer,) = sorted_out.answers
    assert {kind for kind, count in sorted_out.counts.items() if count} == {answer.kind}
    return answer


@pytest.mark.parametrize(
    ("from_end", "kind"),
    [
        (WINDOW - 1, Kind.INSIDE_WINDOW),
        (WINDOW, Kind.INSIDE_WINDOW),
        (WINDOW + 1, Kind.OUTSIDE_WINDOW),
    ],
)
def test_a_record_is_inside_the_window_when_it_begins_in_the_last_tokens_that_a_layer_looks_back_on(
    from_end: int, kind: Kind
) -> None:
    row = made_row(reply=OTHER, window=WINDOW, asked_from_end=550, answer_from_end=from_end)
    assert _only(row) == WrongAnswer("p1", kind, records=1, tokens=550 - from_end)


@pytest.mark.parametrize("untold", ["window", "answer_from_end"])
def test_where_window_or_distance_is_not_told_nobody_says_inside_or_outside(untold: str) -> None:
    told: dict[str, Any] = {"window": WINDOW, "asked_from_end": 550, "answer_from_end": 500}
    answer = _only(made_row(reply=OTHER, **told | {untold: None}))
    assert (answer.kind, answer.records) == (Kind.OTHER_RECORD, 1)
    assert answer.tokens == (50 if untold == "window" else None)


def test_a_record_before_the_asked_one_has_a_negative_distance() -> None:
    answer = _only(made_row(reply=CODES[0], asked_from_end=300, answer_from_end=360))
    assert (answer.records, answer.tokens) == (1 - ASKED, -60)


def test_of_records_that_share_a_code_the_nearest_one_counts() -> None:
    assert _only(made_row(reply=CODES[8])).records == 5 - ASKED
    assert _only(made_row(reply=CODES[8], asked_record=8)).records == 9 - 8


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("345679", Kind.NEAR_MISS),
        ("346578", Kind.NEAR_MISS),  # two neighbours have changed places
        ("945670", Kind.NEAR_MISS),  # any two digits
        ("945679", Kind.NEAR_MISS),
        ("935679", Kind.NO_RECORD),
        ("456780", Kind.NO_RECORD),  # shifted by one
        ("345678 or 345679", Kind.SEVERAL_CODES),
        ("I do not know", Kind.NO_CODE),
    ],
)
def test_what_is_no_records_code_is_sorted_by_its_digits(reply: str, kind: Kind) -> None:
    assert _only(made_row(reply=reply)) == WrongAnswer("p1", kind)


def test_a_random_code_is_a_near_miss_in_1269_of_a_million_cases() -> None:
    assert sum(near_miss(f"{number:06}", RIGHT) for number in range(1_000_000)) == 6 * 9 + 15 * 81


def test_right_answers_invalid_rows_and_errors_are_no_wrong_answers() -> None:
    cut = made_row("p2", OTHER, status="invalid")
    assert wrong_answers([made_row(), cut, failed_row("p3")]).answers == []


def test_every_wrong_answer_is_counted_under_one_kind() -> None:
    rows = [
        made_row(f"p{number}", reply) for number, reply in enumerate([RIGHT, *CODES, "1", "111111 222222", "999999"])
    ]
    counts = wrong_answers(rows).counts
    assert sum(counts.values()) == sum(not row.found for row in rows) == len(CODES) - 1 + 3
    assert set(counts) == set(Kind)
