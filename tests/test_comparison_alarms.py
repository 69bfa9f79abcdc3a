"""What differs is explained to people and machines alike, and --fail-below raises the alarm on agreement alone."""

import json
from pathlib import Path

import pytest

from recall.rounding import ROUNDING
from tests.conftest import run_recall
from tests.made_rows import OTHER, PROMPT_TOKENS, RIGHT, choices, made_row, write

CEILING = 2 * ROUNDING["fp32"]
FIRST, NEARLY = {1: -0.5, 2: -1.5}, {1: -0.5 - CEILING / 4, 2: -1.5}


@pytest.fixture
def parted(tmp_path: Path) -> list[Path]:
    """Two runs that part in prompt p1 by a tie, in p2 by a defect, and in p3 not at all."""
    tie, defect = CEILING / 8, 3 * CEILING
    mine = [
        made_row("p1", RIGHT, **choices(FIRST, {5: -1.0, 7: -1.0 - tie})),
        made_row("p2", RIGHT, **choices(FIRST, {5: -1.0, 7: -1.0 - defect})),
        made_row("p3", RIGHT, **choices(FIRST, {5: -1.0}), window=PROMPT_TOKENS),
    ]
    theirs = [
        made_row("p1", OTHER, **choices(NEARLY, {7: -1.0, 5: -1.0 - tie})),
        made_row("p2", OTHER, **choices(NEARLY, {7: -1.0, 5: -1.0 - defect})),
        made_row("p3", RIGHT, **choices(NEARLY, {5: -1.0})),
    ]
    return [write(tmp_path / "mine.jsonl", mine), write(tmp_path / "theirs.jsonl", theirs)]


def test_machines_get_every_promised_name(parted: list[Path]) -> None:
    told = json.loads(run_recall("compare", *parted, "--json").out)
    assert list(told) == ["runs", "pairs", "unmatched"]
    assert {"name", "found", "n", "interval", "invalid", "errors", "wrong_answers"} <= set(told["runs"][0])
    (pair,) = told["pairs"]
    promised = "a b n agreement same interval same_found same_wrong_record mcnemar_p discordant logprob_difference"
    assert {*promised.split(), "differences"} <= set(pair)
    assert {"median", "max", "ceiling", "places", "alarm"} <= set(pair["logprob_difference"])
    for difference in pair["differences"]:
        tokens = {"a_token", "b_token", "a_in_top_of_b", "b_in_top_of_a", "a_margin", "b_margin", "apart"}
        assert {"prompt_id", "place", "verdict", "reason", *tokens} == set(difference)


def test_machines_get_the_verdict_of_each_difference(parted: list[Path]) -> None:
    (pair,) = json.loads(run_recall("compare", *parted, "--json").out)["pairs"]
    told = [(found["prompt_id"], found["place"], found["verdict"]) for found in pair["differences"]]
    assert told == [("p1", 1, "tie"), ("p2", 1, "defect")]
    logprobs = pair["logprob_difference"]
    assert (logprobs["places"], logprobs["ceiling"], logprobs["alarm"]) == (4, CEILING, False)
    assert logprobs["max"] == pytest.approx(CEILING / 4)
    # The window is told in the third prompt only: its prompt fills it, and its second place lies past it.
    assert (logprobs["up_to_window"]["places"], logprobs["past_window"]["places"]) == (1, 1)


def test_people_get_the_same_in_words_and_in_full(parted: list[Path]) -> None:
    (pair,) = json.loads(run_recall("compare", *parted, "--json").out)["pairs"]
    printed = run_recall("compare", *parted).out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for found in pair["differences"]:
        mine = f"mine gives 5 (margin {found['a_margin']:.2g}, among the likeliest of theirs)"
        theirs = f"theirs gives 7 (margin {found['b_margin']:.2g}, among the likeliest of mine)"
        assert f"{found['verdict']} {found['prompt_id']}, token 2: {mine}, {theirs}: {found['reason']}" in lines
    most = f"at most {pair['logprob_difference']['max']:.2g}"
    (line,) = (line for line in lines if line.startswith("logprobs"))
    assert f"{most}, at 4 places with the same ids; rounding in fp32 explains {CEILING:.2g}" in line
    (up_to_window,) = (line for line in lines if line.startswith("up to window"))
    assert up_to_window.endswith(f"{most}, at 1 place with the same ids")
    assert "past window 0 apart (median), at most 0, at 1 place with the same ids" in lines
    assert "ALARM" not in printed
    assert "are their weights the same?" not in printed


def test_engines_that_differ_at_the_same_ids_are_an_alarm_in_words_though_all_answers_agree(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.jsonl", [made_row(**choices({1: -0.5}))])
    theirs = write(tmp_path / "theirs.jsonl", [made_row(model="other", **choices({1: -0.5 - 100 * CEILING}))])
    ended = run_recall("compare", mine, theirs)
    assert ended.code == 0
    alarm = f"ALARM         the engines' log-probabilities differ by {100 * CEILING:.2g} at the same ids"
    assert f"  {alarm}; rounding in fp32 explains {CEILING:.2g}" in ended.out.splitlines()
    assert "the models are called demo and other: are their weights the same?" in ended.out


def test_agreement_below_the_wanted_share_ends_with_exit_code_4_and_names_the_pair(parted: list[Path]) -> None:
    ended = run_recall("compare", *parted, "--fail-below", 0.34)
    assert ended.code == 4
    assert ended.err == (
        "recall: mine and theirs give the same answer on 1 of 3 prompts, a share of 0.333333: below --fail-below 0.34\n"
    )
    assert "mine and theirs: the same answer on 1 of 3 prompts" in ended.out
    machine = run_recall("compare", *parted, "--fail-below", 1, "--json")
    assert (machine.code, json.loads(machine.out)["pairs"][0]["n"]) == (4, 3)


def test_the_wanted_share_itself_is_enough_and_a_defect_is_no_matter_of_shares(parted: list[Path]) -> None:
    assert run_recall("compare", *parted, "--fail-below", 1 / 3).code == 0
    assert run_recall("compare", parted[0], "--fail-below", 0).code == 2
    assert run_recall("compare", "tpu-v5e-ring", "laptop", "--fail-below", 1).code == 0


def test_every_pair_must_have_the_wanted_share(parted: list[Path]) -> None:
    ended = run_recall("compare", parted[0], parted[1], "laptop", "--fail-below", 0)
    assert ended.code == 4
    assert ended.err.splitlines() == [
        f"recall: {name} and laptop have no prompt whose answers can be compared; --fail-below 0 asks for agreement"
        for name in ("mine", "theirs")
    ]


@pytest.mark.parametrize("share", ["-0.1", "1.1", "90%"])
def test_a_share_is_a_number_from_0_to_1(share: str) -> None:
    ended = run_recall("compare", "laptop", "tpu-v5e-ring", "--fail-below", share)
    assert (ended.code, "--fail-below" in ended.err) == (2, True)


def test_one_run_without_references_has_nothing_to_fall_below(parted: list[Path]) -> None:
    ended = run_recall("compare", parted[0], "--fail-below", 0.5)
    assert ended.code == 2
    assert "--fail-below: nothing to compare" in ended.err
