"""Where two replies part, the log-probabilities tell a tie from a defect; where they cannot, nothing is claimed."""

from typing import Any

import pytest

from recall.differences import Difference, Spread, Verdict, find_differences, logprob_difference, parting
from recall.results import ResultRow
from recall.rounding import ROUNDING, explained
from tests.made_rows import OTHER, PROMPT_TOKENS, RIGHT, choices, made_row

NAMES = ("mine", "theirs")
CEILING = 2 * ROUNDING["fp32"]
# Both take token 1 first, and think the same of it but for a fraction of what rounding explains.
SHIFT = CEILING / 8
FIRST, SHIFTED = {1: -0.5, 2: -1.5}, {1: -0.5 + SHIFT, 2: -1.5}


def _pair(mine: dict[int, float], theirs: dict[int, float], **fields: Any) -> tuple[ResultRow, ResultRow]:
    """Return two rows whose replies begin with the same token and part at the second one."""
    a = made_row(reply=RIGHT, **choices(FIRST, mine))
    return a, made_row(reply=OTHER, **choices(SHIFTED, theirs) | fields)


def _judged(a: ResultRow, b: ResultRow) -> Difference:
    (found,) = find_differences([(a, b)], NAMES, logprob_difference([(a, b)]).max)
    return found


def _apart(distance: float) -> tuple[dict[int, float], dict[int, float]]:
    """Return what two runs think of tokens 5 and 7: each prefers another one, and together by so much."""
    return {5: -1.0, 7: -1.0 - distance / 2}, {7: -1.2, 5: -1.2 - distance / 2}


def test_two_tokens_within_the_rounding_seen_elsewhere_are_a_tie() -> None:
    found = _judged(*_pair(*_apart(1.9 * SHIFT)))
    assert (found.verdict, found.place, found.a_token, found.b_token) == (Verdict.TIE, 1, 5, 7)
    assert (found.a_in_top_of_b, found.b_in_top_of_a) == (True, True)
    assert found.apart == pytest.approx(1.9 * SHIFT)
    assert found.a_margin == found.b_margin == pytest.approx(1.9 * SHIFT / 2)


def test_two_tokens_further_apart_than_the_arithmetic_explains_are_a_defect() -> None:
    found = _judged(*_pair(*_apart(2.1 * CEILING)))
    assert found.verdict is Verdict.DEFECT
    assert f"more than twice what rounding in fp32 explains ({CEILING:.2g})" in found.reason


def test_an_engine_that_is_wrong_everywhere_cannot_excuse_itself_by_that() -> None:
    a, b = _pair(*_apart(2.1 * CEILING))
    b = b.model_copy(update=choices({1: -0.5 + 100 * CEILING, 2: -9.0}, _apart(2.1 * CEILING)[1]))
    assert _judged(a, b).verdict is Verdict.DEFECT


def test_more_than_elsewhere_but_no_more_than_the_arithmetic_explains_is_left_open() -> None:
    found = _judged(*_pair(*_apart(2.1 * SHIFT)))
    assert found.verdict is Verdict.UNKNOWN
    assert "more than twice what they differ by elsewhere (" in found.reason


def test_replies_that_part_at_once_are_judged_by_their_arithmetic_alone() -> None:
    for distance, verdict in ((1.9 * CEILING, Verdict.TIE), (2.1 * CEILING, Verdict.DEFECT)):
        mine, theirs = _apart(distance)
        assert _judged(made_row(**choices(mine)), made_row(reply=OTHER, **choices(theirs))).verdict is verdict


@pytest.mark.parametrize(("distance", "verdict"), [(1.9 * SHIFT, Verdict.TIE), (100.0, Verdict.UNKNOWN)])
def test_quantized_weights_give_a_tie_by_what_is_seen_elsewhere_and_never_a_defect(
    distance: float, verdict: Verdict
) -> None:
    found = _judged(*_pair(*_apart(distance), engine="llama.cpp", dtype="Q4_K_M"))
    assert found.verdict is verdict
    if verdict is Verdict.UNKNOWN:
        assert "what rounding in fp32 and llama.cpp Q4_K_M explains is not known" in found.reason


def test_with_nothing_to_measure_by_nothing_is_claimed() -> None:
    mine, theirs = _apart(1e-9)
    found = _judged(made_row(**choices(mine)), made_row(reply=OTHER, dtype=None, **choices(theirs)))
    assert (found.verdict, "nothing tells" in found.reason) == (Verdict.UNKNOWN, True)


def test_a_token_that_the_other_engine_does_not_tell_is_below_the_last_that_it_tells() -> None:
    mine, theirs = {5: -1.0, 6: -1.0 - 3 * CEILING}, {7: -1.0, 5: -1.0}
    found = _judged(*_pair(mine, theirs))
    assert (found.verdict, found.a_in_top_of_b, found.b_in_top_of_a) == (Verdict.DEFECT, True, False)
    assert found.apart == pytest.approx(3 * CEILING)
    assert "at least" in found.reason
    # A bound that is small says nothing: the token may be anywhere below it.
    found = _judged(*_pair({5: -1.0, 6: -1.0}, theirs))
    assert (found.verdict, found.apart) == (Verdict.UNKNOWN, 0.0)


def test_what_shifts_all_logits_of_a_place_is_no_difference_of_two_tokens() -> None:
    mine, theirs = _apart(1.9 * SHIFT)
    lifted = {token: logprob + 1000 * CEILING for token, logprob in theirs.items()}
    assert _judged(*_pair(mine, lifted)).verdict is Verdict.TIE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer_tokens": None}, "no log-probabilities are told by theirs"),
        ({"prompt_sha256": None}, "nothing proves that both read the same ids"),
        ({"tokens_read": PROMPT_TOKENS + 9}, "nothing proves that both read the same ids"),
        ({"reply_ids": None}, "no tokens are told by theirs"),
        (choices(SHIFTED, {7: -2.0, 5: -1.0}), "theirs did not take its likeliest token"),
    ],
)
def test_where_something_is_missing_the_verdict_is_unknown_and_says_what(change: dict[str, Any], reason: str) -> None:
    found = _judged(*_pair(*_apart(100.0), **change))
    assert found.verdict is Verdict.UNKNOWN
    assert reason in found.reason
    assert found.place == (None if "reply_ids" in change and change["reply_ids"] is None else 1)


def _prefix(reply: str, theirs: str, **fields: Any) -> list[Difference]:
    """Return what is found between a reply of two tokens and one that goes on from them."""
    a = made_row(reply=reply, **choices(FIRST, {5: -0.1}) | fields)
    b = made_row(reply=theirs, **choices(FIRST, {5: -0.1}, {9: -0.2}))
    return find_differences([(a, b)], NAMES, None)


def test_a_reply_that_begins_the_other_is_no_difference_while_the_codes_are_the_same() -> None:
    assert _prefix(RIGHT, f"{RIGHT}.") == []
    assert _prefix("", "") == []


def test_a_reply_that_begins_the_other_and_has_another_code_parts_where_it_ends() -> None:
    (found,) = _prefix(RIGHT, f"{RIGHT} {OTHER}", finish="stop")
    assert (found.place, found.a_token, found.b_token, found.verdict) == (2, None, 9, Verdict.UNKNOWN)
    assert found.reason == "the reply of mine ended there, and its end token is not told"
    (found,) = _prefix(RIGHT, f"{RIGHT} {OTHER}", finish="length")
    assert found.reason == "the reply of mine was cut off there"


def test_a_reply_that_was_cut_off_before_its_code_is_no_other_answer() -> None:
    assert _prefix("", RIGHT, finish="length", status="invalid", tokens_read=PROMPT_TOKENS) == []


def test_a_reply_that_was_cut_off_can_part_before_that() -> None:
    cut: dict[str, Any] = {"status": "invalid", "finish": "length", "tokens_read": PROMPT_TOKENS}
    assert _judged(*_pair(*_apart(2.1 * CEILING), **cut)).verdict is Verdict.DEFECT


@pytest.mark.parametrize("bad", [{"status": "invalid"}, {"status": "error"}])
def test_a_row_that_is_no_answer_to_the_whole_prompt_is_not_compared(bad: dict[str, Any]) -> None:
    pair = _pair(*_apart(100.0), **bad)
    assert find_differences([pair], NAMES, None) == []
    assert logprob_difference([pair]).places == 0


def test_the_same_ids_with_other_codes_are_told() -> None:
    same = choices(FIRST)
    (found,) = find_differences([(made_row(**same), made_row(reply=OTHER, **same))], NAMES, None)
    assert (found.verdict, found.place) == (Verdict.UNKNOWN, None)
    assert "the same ids" in found.reason


def test_parting_is_the_first_place_that_differs() -> None:
    assert parting([1, 2, 3], [1, 9, 3]) == 1
    assert parting([4], [5]) == 0
    assert parting([1, 2], [1, 2, 3]) is parting([], [1]) is parting([1], [1]) is None


def test_logprobs_are_compared_before_the_place_where_replies_part_and_over_tokens_that_both_tell() -> None:
    mine = choices({1: -0.5, 2: -1.5, 3: -2.5}, {4: -0.25, 8: -4.0}, {5: -1.0, 7: -9.0})
    theirs = choices({1: -0.75, 2: -1.0, 6: -2.0}, {4: -0.25, 9: -4.0}, {7: -1.0, 5: -9.0})
    difference = logprob_difference([(made_row(**mine), made_row(**theirs))])
    # 0.25 and 0.5 at the first place, 0 at the second; the third is where they part.
    assert (difference.places, difference.median, difference.max) == (2, 0.25, 0.5)
    assert difference.alarm
    assert (difference.up_to_window, difference.past_window) == (None, None)


@pytest.mark.parametrize("change", [{"prompt_sha256": "b" * 64}, {"prompt_sha256": None}, {"tokens_read": 700}])
def test_logprobs_after_other_ids_are_not_compared(change: dict[str, Any]) -> None:
    same = choices(FIRST)
    difference = logprob_difference([(made_row(**same), made_row(**same, **change))])
    assert (difference.places, difference.median, difference.max, difference.alarm) == (0, None, None, False)


def test_places_past_the_window_are_told_apart_from_those_up_to_it() -> None:
    mine, theirs = choices({1: -0.5}, {2: -0.5}, {3: -0.5}), choices({1: -0.5}, {2: -0.75}, {3: -1.5})
    a, b = made_row(**mine, window=PROMPT_TOKENS + 1), made_row(**theirs)
    # The prompt and one token of the reply fill the window exactly.
    difference = logprob_difference([(a, b)])
    assert difference.up_to_window == Spread(0.125, 0.25, 2)
    assert difference.past_window == Spread(1.0, 1.0, 1)
    assert logprob_difference([(b, a)]).past_window == Spread(1.0, 1.0, 1)


def test_two_prompts_whose_ids_nobody_tells_are_not_taken_for_the_same() -> None:
    untold = made_row(prompt_sha256=None, **choices(FIRST))
    assert logprob_difference([(untold, untold)]).places == 0


def test_runs_that_changed_their_arithmetic_midway_have_no_common_ceiling() -> None:
    mine, theirs = made_row(**choices(FIRST)), made_row(dtype="bf16", **choices(FIRST))
    difference = logprob_difference([(mine, mine), (mine, theirs)])
    assert (difference.ceiling, difference.arithmetic) == (None, "fp32 and bf16")


@pytest.mark.parametrize(("shift", "alarm"), [(0.9, False), (1.1, True)])
def test_more_than_the_arithmetic_explains_is_an_alarm_also_where_no_answer_differs(shift: float, alarm: bool) -> None:
    a, b = made_row(**choices({1: -0.5})), made_row(**choices({1: -0.5 - shift * CEILING}))
    difference = logprob_difference([(a, b)])
    assert (difference.ceiling, difference.alarm) == (CEILING, alarm)
    assert find_differences([(a, b)], NAMES, difference.max) == []


def test_no_alarm_where_nobody_knows_what_rounding_explains() -> None:
    a, b = made_row(**choices({1: -0.5})), made_row(dtype="Q4_K_M", engine="llama.cpp", **choices({1: -9.0}))
    difference = logprob_difference([(a, b)])
    assert (difference.ceiling, difference.alarm, difference.max) == (None, False, 8.5)


LLAMA_CPP = {"engine": "llama.cpp", "dtype": "F32"}


@pytest.mark.parametrize(
    ("fields", "rounding"),
    [
        ({"dtype": "fp32", "device": "cuda:0"}, ROUNDING["fp32"]),
        ({"dtype": "bf16", "device": "tpu"}, ROUNDING["bf16"]),
        ({"dtype": "fp32", "device": "tpu"}, None),
        ({"dtype": None}, None),
        (LLAMA_CPP | {"settings": {"kv_type": "f16"}}, ROUNDING["llama.cpp F32"]),
        (LLAMA_CPP | {"settings": {"kv_type": "f32"}}, ROUNDING["llama.cpp F32"]),
        (LLAMA_CPP | {"settings": {"kv_type": "q8_0"}}, None),
        (LLAMA_CPP | {"dtype": "Q8_0"}, None),
    ],
)
def test_two_runs_differ_by_at_most_the_rounding_of_both(fields: dict[str, Any], rounding: float | None) -> None:
    other = made_row(**fields)
    sums = None if rounding is None else ROUNDING["fp32"] + rounding
    assert explained(made_row(), other) == explained(other, made_row()) == sums
