"""What a careful reader says the code of a reply is: golden cases by kind, and properties that hold for every reply."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from recall.answers import _THINKING, codes_in, records_in

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "golden_answers.jsonl").read_text().splitlines()
]
MEGABYTE = 1_000_000

codes = st.text("0123456789", min_size=6, max_size=6)
# No digits, and no characters that nobody sees: what those do to a number has golden cases.
mark_names = [mark for marks in _THINKING for mark in marks]
noise = st.text(
    st.characters(exclude_categories=["Nd", "Cf", "Cs"], exclude_characters="\ufe0f\u20e3"), max_size=30
).filter(lambda text: not any(mark in text for mark in [*mark_names, "://"]))
every_digit = st.characters(categories=["Nd"])
thoughts = st.lists(st.one_of(codes, noise, st.sampled_from(mark_names)), max_size=8).map("".join)
anything = st.text(st.characters(exclude_categories=[]), max_size=60)
likely = st.lists(
    st.sampled_from(
        ["610395", "6", "10", "395", " ", ",", ", ", ".", "-", "*", "**", "`", "\n", "a", "_", *mark_names]
    ),
    max_size=20,
).map("".join)


def test_the_golden_cases_are_many_different_ones_of_every_kind() -> None:
    assert len(ROWS) >= 300
    assert len({row["reply"] for row in ROWS}) == len(ROWS)
    assert all(set(row) == {"reply", "codes", "kind", "why"} and row["why"] for row in ROWS)
    kinds = [row["kind"] for row in ROWS]
    assert len(set(kinds)) == 16
    assert all(kinds.count(kind) >= 5 for kind in kinds)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['kind']}: {row['reply'][:30]!r}" for row in ROWS])
def test_a_reply_gives_the_codes_that_a_careful_reader_finds_in_it(row: dict[str, Any]) -> None:
    assert codes_in(row["reply"]) == row["codes"], row["why"]


@given(before=noise, code=codes, after=noise)
@example(before="(", code="610395", after=".)")
@example(before="'", code="610395", after="'s")
def test_text_without_digits_around_a_code_changes_nothing(before: str, code: str, after: str) -> None:
    assume(not before.endswith("."))  # a point in front may make it a decimal
    assert codes_in(before + code + after) == [code]


@given(run=st.text(every_digit, min_size=7, max_size=40), before=noise, after=noise)
@example(run="6103951", before="", after="")
@example(run="٦610395", before="", after="")
def test_no_code_is_found_inside_a_longer_run_of_digits(run: str, before: str, after: str) -> None:
    assert codes_in(before + run + after) == []


@given(code=codes, digits=st.text("0123456789", min_size=1, max_size=9), letters=st.text("abcxyzEX_", min_size=1))
def test_no_code_is_found_in_an_identifier_with_further_digits(code: str, digits: str, letters: str) -> None:
    assert codes_in(f"{digits}{letters}{code}") == codes_in(f"{code}{letters}{digits}") == []


@given(marks=st.sampled_from(_THINKING), thought=thoughts, answer=noise, code=codes)
def test_what_stands_in_thinking_marks_is_never_read(
    marks: tuple[str, str], thought: str, answer: str, code: str
) -> None:
    opening, closing = marks
    assert set(codes_in(f"{opening}{thought}{closing}{answer} {code}")) <= {code}
    if not any(mark in thought for mark in mark_names):
        assert codes_in(f"{opening}{thought}{closing}{answer} {code}") == [code]
        assert codes_in(f"{thought}{closing}{answer} {code}") == [code]
        assert codes_in(f"{code} {answer}{opening}{thought}") == [code]


@given(
    code=codes,
    before=st.sampled_from(["", "Code: ", "**", "("]),
    size=st.sampled_from([1, 2, 3]),
    separator=st.sampled_from([",", " ", "\u00a0", "\u2009", "\u202f"]),
)
def test_one_kind_of_separator_between_the_groups_of_a_code_changes_nothing(
    code: str, before: str, size: int, separator: str
) -> None:
    groups = [code[at : at + size] for at in range(0, 6, size)]
    assert codes_in(before + separator.join(groups)) == [code]
    assert codes_in(f"{code} is {separator.join(groups)}") == [code]


@given(code=codes, number=st.text("0123456789", min_size=1, max_size=9), joint=st.sampled_from(".-"))
def test_a_number_behind_a_point_or_hyphen_belongs_to_what_stands_before_it(code: str, number: str, joint: str) -> None:
    assume(joint == "." or len(number) != 6)  # a hyphen between two codes stands as a comma does
    assert codes_in(code + joint + number) == codes_in(number + joint + code) == []


@settings(max_examples=300)
@given(reply=st.one_of(anything, likely))
def test_every_text_is_read_and_gives_whole_numbers_that_stand_in_it(reply: str) -> None:
    found, numbers = codes_in(reply), records_in(reply)
    assert all(re.fullmatch(r"[0-9]{6}", code) for code in found)
    assert all(re.fullmatch(r"[0-9]{5}", number) for number in numbers)
    assert len(set(found)) == len(found)
    digits = "".join(str(int(char)) for char in reply if char.isdecimal())
    assert all(code in digits for code in found)


@pytest.mark.parametrize(
    "part",
    ["6", "٦", ",", " ", "`", "*", "~", "*6", "`6`", "6,", "6 ", "6, ", "61 ", "610,", "6-", "6.", "6a", "a", "_6",
     "<think>", "</think>", "<think>6</think>", "https://", "610395a", "**6", "6**", "6\u200b", "{,}", "\\,", "6{,}"],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_to_its_end(part: str) -> None:
    # A pattern that goes back over what it has read would not come to the end of these within a day.
    whole = part * (MEGABYTE // len(part))
    assert codes_in(f"{whole}\n610395") in ([], ["610395"])
    assert codes_in(f"610395\n{whole}") in ([], ["610395"])
    assert codes_in(f"5{whole}5") == []
