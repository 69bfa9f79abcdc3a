"""Any number of runs are compared, each with each; what machines read and what people read say the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recall.comparison import compare_runs
from recall.errors import RecallError
from recall.intervals import mcnemar, wilson
from recall.results import ResultRow
from tests.conftest import Ended, run_recall
from tests.made_rows import OTHER, PROMPT_TOKENS, RIGHT, failed_row, made_row, write

Files = Callable[..., list[Path]]
STRAY = "500000"  # two records' code


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return what writes one results file for each named run."""
    return lambda **runs: [write(tmp_path / f"{name}.jsonl", rows) for name, rows in runs.items()]


def _run(*replies: str, **fields: Any) -> list[ResultRow]:
    """Return the rows of a run that gave these replies to prompts p1, p2, ..."""
    return [made_row(f"p{number}", reply, **fields) for number, reply in enumerate(replies, 1)]


def _json(*arguments: object) -> Any:
    ended = run_recall("compare", *arguments, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def _lines(ended: Ended) -> list[list[str]]:
    """Return the words of each printed line."""
    return [line.split() for line in ended.out.splitlines()]


THREE = {
    "ring": _run(RIGHT, RIGHT, RIGHT, OTHER, STRAY, ""),
    "hf": _run(RIGHT, RIGHT, OTHER, OTHER, OTHER, ""),
    "llama": _run(RIGHT, OTHER, OTHER, RIGHT, STRAY, "123456"),
}


def test_every_two_of_three_runs_are_compared(files: Files) -> None:
    told = _json(*files(**THREE))
    assert [(pair["a"], pair["b"]) for pair in told["pairs"]] == [("ring", "hf"), ("ring", "llama"), ("hf", "llama")]
    keys = ("n", "same", "same_wrong", "same_found", "discordant", "n_wrong_record", "same_wrong_record")
    assert [[pair[key] for key in keys] for pair in told["pairs"]] == [
        [6, 4, 2, 5, [1, 0], 2, 1],
        [6, 2, 1, 3, [2, 1], 1, 1],
        [6, 2, 1, 4, [1, 1], 2, 1],
    ]
    for pair in told["pairs"]:
        assert pair["agreement"] == pytest.approx(pair["same"] / 6)
        assert pair["interval"] == pytest.approx(wilson(pair["same"], 6))
        assert pair["mcnemar_p"] == mcnemar(*pair["discordant"])


def test_the_table_lays_every_other_run_beside_the_first_one() -> None:
    agreement = compare_runs(THREE).agreement
    assert [row["hf"].same for row in agreement] == [True, True, False, True, False, True]
    assert [row["llama"].same for row in agreement] == [True, False, False, False, True, False]


def test_each_run_tells_what_it_found_and_what_its_wrong_answers_are(files: Files) -> None:
    told = _json(*files(**THREE))
    assert [(run["name"], run["found"], run["n"]) for run in told["runs"]] == [
        ("ring", 3, 6),
        ("hf", 2, 6),
        ("llama", 2, 6),
    ]
    for run in told["runs"]:
        assert run["interval"] == pytest.approx(wilson(run["found"], run["n"]))
        assert sum(run["wrong_answers"]["counts"].values()) == len(run["wrong_answers"]["answers"]) == 6 - run["found"]
    assert told["runs"][0]["wrong_answers"]["answers"] == [
        {"prompt_id": "p4", "kind": "other-record", "records": 1, "tokens": None},
        {"prompt_id": "p5", "kind": "other-record", "records": 2, "tokens": None},
        {"prompt_id": "p6", "kind": "no-code", "records": None, "tokens": None},
    ]


def test_three_runs_are_printed_with_a_matrix_for_each_kind_of_agreement(files: Files) -> None:
    ended = run_recall("compare", *files(**THREE))
    lines = _lines(ended)
    for matrix in (
        ["same answer ring hf llama", "ring - 4 of 6 2 of 6", "hf 4 of 6 - 2 of 6", "llama 2 of 6 2 of 6 -"],
        ["same found or not ring hf llama", "ring - 5 of 6 3 of 6", "hf 5 of 6 - 4 of 6", "llama 3 of 6 4 of 6 -"],
        ["same wrong record ring hf llama", "ring - 1 of 2 1 of 1", "hf 1 of 2 - 1 of 2", "llama 1 of 1 1 of 2 -"],
    ):
        begin = lines.index(matrix[0].split())
        assert lines[begin : begin + 4] == [line.split() for line in matrix]
    assert "ring and llama: the same answer on 2 of 6 prompts, 1 of them wrong ones" in ended.out
    assert "by both or by neither 3 of 6, by ring only 2, by llama only 1: McNemar p = 1" in ended.out
    assert lines[0][-6:] == ["hf", "answer", "same", "llama", "answer", "same"]


def test_invalid_rows_and_errors_are_no_missed_needles(files: Files) -> None:
    rows = [*_run(RIGHT, OTHER), made_row("p3", OTHER, status="invalid"), failed_row("p4")]
    ended = run_recall("compare", *files(mine=rows, theirs=_run(RIGHT, RIGHT, OTHER, RIGHT)))
    assert ["mine", "1", "2", "50.0%", "9.5%", "to", "90.5%", "1", "1"] in _lines(ended)
    assert "mine and theirs: the same answer on 1 of 2 prompts, 0 of them wrong ones" in ended.out
    assert "by mine only 0, by theirs only 1" in ended.out


def test_a_run_without_a_valid_row_has_no_share_and_agrees_with_nobody(files: Files) -> None:
    invalid, good = _run(RIGHT, OTHER, status="invalid"), _run(RIGHT, OTHER)
    told = _json(*files(mine=invalid, theirs=good))
    mine, pair = told["runs"][0], told["pairs"][0]
    assert (mine["found"], mine["n"], mine["interval"], mine["invalid"]) == (0, 0, [0.0, 1.0], 2)
    assert (pair["n"], pair["agreement"], pair["interval"], pair["mcnemar_p"]) == (0, None, [0.0, 1.0], None)
    ended = run_recall("compare", *files(mine=invalid, theirs=good))
    assert ["mine", "0", "0", "-", "0.0%", "to", "100.0%", "2", "0"] in _lines(ended)
    assert "mine and theirs: no prompt whose answers can be compared" in ended.out


def test_two_answers_that_were_cut_off_are_the_same_and_no_wrong_ones() -> None:
    cut = {"status": "invalid", "finish": "length", "tokens_read": PROMPT_TOKENS}
    (pair,) = compare_runs({"mine": _run("", RIGHT, **cut), "theirs": _run("", RIGHT, **cut)}).pairs
    assert (pair.n, pair.same, pair.same_wrong, pair.n_valid, pair.mcnemar_p) == (2, 2, 0, 0, None)


def test_runs_without_a_common_prompt_say_so(files: Files) -> None:
    mine, theirs = [made_row("p1"), made_row("p2")], [made_row("p3")]
    ended = run_recall("compare", *files(mine=mine, theirs=theirs))
    assert ended.code == 0
    assert ended.out.splitlines()[-3:] == [
        "mine and theirs: no prompt whose answers can be compared",
        "2 of 2 prompts of mine have no row in theirs",
        "1 of 1 prompts of theirs have no row in mine",
    ]


def test_different_prompts_under_one_id_are_refused_also_between_two_references() -> None:
    other = [made_row("p2", code="999999")]
    with pytest.raises(RecallError, match="b and c answer different prompts under the id 'p2'"):
        compare_runs({"a": [made_row("p1")], "b": [made_row("p2")], "c": other})


def test_one_file_is_compared_with_the_references_in_its_rows(files: Files) -> None:
    stored = {"answer": RIGHT, "outcome": "found", "same": True}
    other = {"answer": OTHER, "outcome": "other-record", "same": False}
    lines = [json.loads(row.model_dump_json()) for row in _run(RIGHT, RIGHT, OTHER)]
    for line, laptop in zip(lines, [stored, other, other | {"same": True}], strict=True):
        line["agreement"] = {"laptop": laptop}
    (file,) = files(mine=[ResultRow.model_validate_json(json.dumps(line)) for line in lines])
    told = _json(file)
    (pair,) = told["pairs"]
    assert [run["name"] for run in told["runs"]] == ["mine"]
    assert (pair["b"], pair["n"], pair["same"], pair["discordant"], pair["same_wrong_record"]) == (
        "laptop",
        3,
        2,
        [1, 0],
        1,
    )


def test_published_runs_agree_on_all_five_prompts_the_wrong_ones_included() -> None:
    told = _json("tpu-v5e-ring", "laptop")
    (pair,) = told["pairs"]
    assert (pair["agreement"], pair["n"], pair["same_wrong_record"], pair["differences"]) == (1.0, 5, 2, [])
    assert pair["interval"] == pytest.approx([0.5655, 1.0], abs=5e-5)
    assert [(run["found"], run["n"]) for run in told["runs"]] == [(3, 5), (3, 5)]
    assert [told["records"] for told in told["runs"][1]["wrong_answers"]["answers"]] == [451, -1000]
