"""`recall sweep` fills every cell of length x depth x seed with the row that `recall score` writes for its prompt."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recall.clusters import clustered, seeds_for
from recall.errors import RecallError
from recall.grids import Share, grid
from recall.intervals import wilson
from recall.results import Outcome, ResultRow, read_results
from recall.sweeps import depths, numbers
from tests.conftest import Ended, run_recall

OWN = {"read_s", "read_tok_s", "decode_tok_s", "cache_bytes", "settings"}  # what one read for all changes
SIZES = ["--lengths", "512,1024,2048", "--depths", "3", "--seeds", "2", "--seed", "5", "--max-new", "8"]


@pytest.fixture(scope="module")
def model(small_model: Callable[[str], Path]) -> Path:
    return small_model("gemma3")


def _arguments(model: Path, output: Path, *more: object, engine: str = "ring") -> list[object]:
    options = ["--engine", engine, "--model", model, "--format", "completion", *SIZES]
    return ["sweep", *options, *(["--threads", 1] if engine == "ring" else []), "-o", output, *more]


def _sweep(model: Path, output: Path, *more: object, engine: str = "ring") -> Ended:
    return run_recall(*_arguments(model, output, *more, engine=engine))


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row.prompt_id: row.model_dump(exclude=OWN) for row in read_results(path)}


@pytest.fixture(scope="module")
def scored(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep's prompts, put to the ring one by one by `recall score`."""
    folder = tmp_path_factory.mktemp("scored")
    sizes = [part for size in ("512", "1024", "2048") for part in ("--budget", size)]
    sizes += [part for depth in ("0.0", "0.5", "1.0") for part in ("--depth", depth)]
    made = ["--seed", 5, "--count", 2, "--answer-room", 8, "--format", "completion", "--tokenizer", model]
    assert run_recall("generate", *made, *sizes, "-o", folder / "set.jsonl").code == 0
    ring = ["--engine", "ring", "--model", model, "--threads", 1]
    assert run_recall("score", folder / "set.jsonl", *ring, "-o", folder / "ring.jsonl").code == 0
    return folder / "ring.jsonl"


def test_rows_of_one_read_are_those_of_score_to_the_bit(model: Path, scored: Path, tmp_path: Path) -> None:
    assert _sweep(model, tmp_path / "s.jsonl", "--batch", 1).code == 0
    assert _rows(tmp_path / "s.jsonl") == _rows(scored)


def test_side_by_side_rows_give_the_same_ids(model: Path, scored: Path, tmp_path: Path) -> None:
    ended = _sweep(model, tmp_path / "s.jsonl")
    assert ended.code == 0
    swept, alone = _rows(tmp_path / "s.jsonl"), _rows(scored)
    assert len(swept) == 18
    assert {name: row["reply_ids"] for name, row in swept.items()} == {
        name: row["reply_ids"] for name, row in alone.items()
    }
    assert {row.settings["batch"] for row in read_results(tmp_path / "s.jsonl")} == {16}
    assert "[18/18]" in ended.err
    assert "cells have their row already" not in ended.err
    assert ended.out.split()[:6] == ["depth", "512", "1,024", "2,048", "all", "lengths"]


def test_an_engine_that_cannot_share_a_read_fills_the_same_cells_one_by_one(
    model: Path, scored: Path, tmp_path: Path
) -> None:
    assert _sweep(model, tmp_path / "oracle.jsonl", engine="oracle").code == 0
    rows = read_results(tmp_path / "oracle.jsonl")
    assert {row.prompt_id for row in rows} == set(_rows(scored))
    assert all(row.found for row in rows)


def test_in_a_terminal_the_picture_fills_up_over_the_bars(model: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "recall", *map(str, _arguments(model, tmp_path / "s.jsonl", "--batch", 1))]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ) as running:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # what a terminal gives when its last writer is gone
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())  # without colours and moves of the cursor
    assert running.returncode == 0
    assert re.search(r"depth +512 +1,024 +2,048 +all lengths", text)
    assert re.search(r"18/18.* cells", text)
    # The longest prompt of each of two seeds.
    longest = [row.prompt_tokens for row in read_results(tmp_path / "s.jsonl") if row.budget == 2048]
    assert re.search(rf"{2 * max(longest)}/{2 * max(longest)}.* tokens", text)


def test_a_killed_sweep_goes_on_and_ends_with_the_rows_of_an_undisturbed_one(
    model: Path, scored: Path, tmp_path: Path
) -> None:
    output = tmp_path / "s.jsonl"
    command = [sys.executable, "-m", "recall", *map(str, _arguments(model, output, "--batch", 1))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None and (not output.exists() or output.read_bytes().count(b"\n") < 4):
            time.sleep(0.002)
        os.kill(running.pid, signal.SIGKILL)
    assert output.read_bytes().count(b"\n") < 18
    ended = _sweep(model, output, "--batch", 1)
    assert ended.code == 0
    assert "of 18 cells have their row already" in ended.err
    assert _rows(output) == _rows(scored)


def test_the_manifest_beside_the_rows_makes_them_judged_again(model: Path, tmp_path: Path) -> None:
    assert _sweep(model, tmp_path / "s.jsonl", engine="oracle").code == 0
    again = run_recall(
        "rescore", tmp_path / "s.jsonl", "--prompts", tmp_path / "s.prompts.jsonl", "-o", tmp_path / "r.jsonl"
    )
    assert again.code == 0
    assert _rows(tmp_path / "r.jsonl") == _rows(tmp_path / "s.jsonl")


def test_a_plan_says_what_would_be_read_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    ended = _sweep(model, tmp_path / "s.jsonl", "--plan")
    assert ended.code == 0
    assert "18 cells (3 lengths x 3 depths x 2 seeds), at most 4,096 tokens to read instead of 21,504" in ended.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--depths", "1"], "--depths '1'"),
        (["--depths", "0.5,1.5"], "--depths '0.5,1.5'"),
        (["--depths", "many"], "--depths 'many'"),
        (["--lengths", "4k"], "--lengths '4k'"),
        (["--lengths", "8"], "--budget 8 is too small for one record"),
        (["--batch", "2", "--mode", "compile"], "--batch above 1 needs --mode eager"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(model: Path, tmp_path: Path, options: list[str], said: str) -> None:
    ended = _sweep(model, tmp_path / "s.jsonl", *options)
    assert (ended.code, said in ended.err) == (2, True)


def test_depths_are_spread_evenly_or_named() -> None:
    assert depths("11") == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert depths("2") == [0.0, 1.0]
    assert depths("0.25,0.5,0.25") == [0.25, 0.5]
    assert numbers("--lengths", "8192,4096") == [8192, 4096]
    with pytest.raises(RecallError):
        depths("1,2")


def _row(seed: int, budget: int, depth: float, *, found: bool, status: str = "ok") -> ResultRow:
    outcome = Outcome.FOUND if found else Outcome.NO_CODE
    asked = {"asked_record": 1, "code": "111111", "answer": None, "codes": [], "outcome": outcome, "record": None}
    known = {"prompt_id": "p", "engine": "e", "model": "m", "context": 1, "prompt_tokens": 1, "records": 1}
    placed = {"seed": seed, "budget": budget, "depth": depth, "found": found, "status": status, "reply": None}
    return ResultRow.model_validate(known | asked | placed)


def test_a_grid_counts_cells_and_margins_and_leaves_out_what_does_not_count() -> None:
    rows = [
        _row(1, 512, 0.0, found=True),
        _row(2, 512, 0.0, found=False),
        _row(1, 512, 1.0, found=True),
        _row(2, 512, 1.0, found=False, status="invalid"),
        _row(1, 1024, 0.0, found=True),
    ]
    drawn = grid(rows)
    assert (drawn.lengths, drawn.depths, drawn.seeds) == ([512, 1024], [0.0, 1.0], 2)
    assert drawn.cells[512, 0.0] == Share(1, 2, wilson(1, 2))
    assert drawn.cells[512, 1.0] == Share(1, 1, wilson(1, 1))
    assert (1024, 1.0) not in drawn.cells
    assert (drawn.by_length[512].found, drawn.by_length[512].n) == (2, 3)
    assert (drawn.by_depth[0.0].found, drawn.by_depth[0.0].n) == (2, 3)
    assert (drawn.overall.found, drawn.overall.n) == (3, 4)


def test_clusters_that_answer_as_one_count_as_one_answer_each() -> None:
    assert clustered([(10, 10), (0, 10), (10, 10), (0, 10)]) == pytest.approx(wilson(2, 4))
    assert clustered([(10, 10), (10, 10), (10, 10)]) == wilson(3, 3)


def test_clusters_of_one_answer_are_independent_answers() -> None:
    assert clustered([(1, 1)] * 30 + [(0, 1)] * 70) == pytest.approx(wilson(30, 100))


def test_an_interval_of_clusters_that_partly_agree_lies_between() -> None:
    # Shares 0.2, 0.4, 0.6, 0.8 of ten: the variance of their mean is (0.09 + 0.01 + 0.01 + 0.09) / (3 x 4) = 1/60,
    # which 0.25 x 60 = 15 independent answers have.
    assert clustered([(2, 10), (4, 10), (6, 10), (8, 10)]) == pytest.approx(wilson(7.5, 15))


def test_clusters_that_do_not_differ_are_worth_all_their_answers() -> None:
    assert clustered([(3, 10)] * 8) == pytest.approx(wilson(24, 80))


def test_seeds_for_five_points_grow_with_dependence() -> None:
    # Two shares of a half, 5 points apart: 1570 independent answers a side (z 1.959964 and 0.841621).
    assert seeds_for(0.05, 1, 0.0) == 1570
    assert seeds_for(0.05, 10, 0.0) == 157
    assert seeds_for(0.05, 10, 1.0) == 1570
