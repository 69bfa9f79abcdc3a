"""Parts of a run, each by a job of its own, come together to the rows of the whole run, or to an error."""

from pathlib import Path

import pytest

from generators import read_prompts
from recall.errors import RecallError
from recall.results import read_results, write_results
from recall.selection import shard
from tests.conftest import Ended, run_recall

PARTS = 3


@pytest.fixture(scope="module")
def folder(byte_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of prompts of different sizes, and its run by the oracle: whole, and in parts."""
    made = tmp_path_factory.mktemp("parts")
    sizes = ["--budget", 512, "--budget", 900, "--budget", 2048, "--count", 4, "--format", "completion"]
    assert run_recall("generate", *sizes, "--tokenizer", byte_folder, "-o", made / "set.jsonl").code == 0
    oracle = ["score", made / "set.jsonl", "--engine", "oracle", "--model", byte_folder]
    assert run_recall(*oracle, "-o", made / "whole.jsonl").code == 0
    for part in range(1, PARTS + 1):
        ended = run_recall(*oracle, "--shard", f"{part}/{PARTS}", "-o", made / f"part-{part}.jsonl")
        assert ended.code == 0
    return made


def _merge(folder: Path, *parts: Path, output: str) -> Ended:
    (folder / output).unlink(missing_ok=True)
    return run_recall("merge", *parts, "--prompts", folder / "set.jsonl", "-o", folder / output)


def _parts(folder: Path) -> list[Path]:
    return [folder / f"part-{part}.jsonl" for part in range(1, PARTS + 1)]


def test_parts_share_no_prompt_and_are_of_about_the_same_size(folder: Path) -> None:
    prompts = read_prompts(folder / "set.jsonl")
    parts = [shard(prompts, f"{part}/{PARTS}") for part in range(1, PARTS + 1)]
    assert sorted(prompt.id for part in parts for prompt in part) == sorted(prompt.id for prompt in prompts)
    sizes = [sum(prompt.prompt_tokens for prompt in part) for part in parts]
    assert max(sizes) - min(sizes) <= max(prompt.prompt_tokens for prompt in prompts)


def test_parts_by_seed_keep_a_seed_together(folder: Path) -> None:
    prompts = read_prompts(folder / "set.jsonl")
    parts = [{prompt.seed for prompt in shard(prompts, f"{part}/2", by_seed=True)} for part in (1, 2)]
    assert [len(seeds) for seeds in parts] == [2, 2]
    assert parts[0].isdisjoint(parts[1])


def test_merged_parts_are_the_whole_run(folder: Path) -> None:
    ended = _merge(folder, *reversed(_parts(folder)), output="all.jsonl")
    assert ended.code == 0
    assert (folder / "all.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()


def test_a_missing_part_is_refused_by_the_prompts_that_have_no_row(folder: Path) -> None:
    ended = _merge(folder, *_parts(folder)[1:], output="short.jsonl")
    missing = [row.prompt_id for row in read_results(folder / "part-1.jsonl")]
    assert ended.code == 2
    assert f"{len(missing)} of 12 prompts have no row (" in ended.err
    assert missing[0] in ended.err
    assert not (folder / "short.jsonl").exists()


def test_the_same_answer_twice_is_no_conflict_and_another_one_is(folder: Path) -> None:
    assert _merge(folder, folder / "whole.jsonl", folder / "part-2.jsonl", output="twice.jsonl").code == 0
    first, *rest = read_results(folder / "part-2.jsonl")
    write_results(folder / "other.jsonl", [first.model_copy(update={"reply": "123456"}), *rest])
    ended = _merge(folder, folder / "whole.jsonl", folder / "other.jsonl", output="conflict.jsonl")
    assert (ended.code, f"have two answers to prompt {first.prompt_id!r}" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("engine", "other"), ("fingerprint", "0" * 16), ("dtype", "bf16"), ("settings", {"mode": "x"}), ("max_new", 3)],
)
def test_parts_of_other_settings_are_refused(folder: Path, field: str, value: object) -> None:
    rows = [row.model_copy(update={field: value}) for row in read_results(folder / "part-3.jsonl")]
    write_results(folder / "other.jsonl", rows)
    ended = _merge(folder, *_parts(folder)[:2], folder / "other.jsonl", output="mixed.jsonl")
    assert (ended.code, f"was made with another {field}" in ended.err) == (2, True)


def test_rows_of_another_set_are_refused(folder: Path) -> None:
    rows = [row.model_copy(update={"prompt_sha256": "0" * 64}) for row in read_results(folder / "part-3.jsonl")]
    write_results(folder / "other.jsonl", rows)
    ended = _merge(folder, *_parts(folder)[:2], folder / "other.jsonl", output="mixed.jsonl")
    assert (ended.code, "belongs to another set" in ended.err) == (2, True)


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/13"])
def test_a_part_that_cannot_be_is_one_sentence(folder: Path, part: str) -> None:
    with pytest.raises(RecallError, match=f"--shard '?{part}"):
        shard(read_prompts(folder / "set.jsonl"), part)
