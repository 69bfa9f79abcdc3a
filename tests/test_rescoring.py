"""Rescoring judges a row by today's reader and its prompt's records, and keeps all that a run measured."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from generators import read_prompts
from recall import published
from recall.rescoring import rescore
from recall.results import Outcome, ResultRow, read_results, write_results
from tests.conftest import Ended, run_recall

CUT_OFF = "the answer was cut off before it gave a code; give a larger --max-new"


@pytest.fixture(scope="module")
def runs(small_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of six prompts, its manifest, and the rows of three engines; one gives no code at all."""
    folder = tmp_path_factory.mktemp("runs")
    model = small_model("gemma3")
    made = ["--budget", 512, "--depth", 0.0, "--depth", 1.0, "--count", 3, "--tokenizer", model]
    _well("generate", *made, "--format", "completion", "-o", folder / "set.jsonl")
    _well("generate", *made, "--format", "completion", "--manifest", "-o", folder / "manifest.jsonl")
    for engine in ("oracle", "first-record"):
        _well("score", folder / "set.jsonl", "--engine", engine, "--model", model, "-o", folder / f"{engine}.jsonl")
    ring = ["--engine", "ring", "--model", model, "--max-new", 4, "-o", folder / "ring.jsonl"]
    run_recall("score", folder / "set.jsonl", *ring, "--reference", folder / "oracle.jsonl")
    return folder


@pytest.fixture
def rows(runs: Path, tmp_path: Path) -> Path:
    """The rows of `first-record`, of which three found their record, in a file of their own."""
    copy = tmp_path / "rows.jsonl"
    copy.write_bytes((runs / "first-record.jsonl").read_bytes())
    return copy


def _well(*arguments: object) -> Ended:
    ended = run_recall(*arguments)
    assert ended.code == 0, ended.err
    return ended


def _change(path: Path, number: int, **fields: Any) -> ResultRow:
    """Change fields of a row in its file, and return the row as it was."""
    lines = path.read_text().splitlines()
    before = ResultRow.model_validate_json(lines[number])
    lines[number] = json.dumps(json.loads(lines[number]) | fields)
    path.write_text("".join(line + "\n" for line in lines))
    return before


def _judged(row: ResultRow, runs: Path, **fields: Any) -> ResultRow:
    """Return a row with these fields, judged again."""
    prompts = {prompt.id: prompt for prompt in read_prompts(runs / "manifest.jsonl")}
    (judged,) = rescore([row.model_copy(update=fields)], {}, prompts)
    return judged


@pytest.mark.parametrize("prompts", ["set.jsonl", "manifest.jsonl"])
@pytest.mark.parametrize("run", ["oracle", "first-record", "ring"])
def test_with_the_reader_as_it_was_every_row_is_as_it_was(runs: Path, tmp_path: Path, run: str, prompts: str) -> None:
    output = tmp_path / "rows.jsonl"
    ended = _well("rescore", runs / f"{run}.jsonl", "--prompts", runs / prompts, "-o", output)
    assert output.read_bytes() == (runs / f"{run}.jsonl").read_bytes()
    assert f"{output}: 6 rows, 0 with another verdict, " in ended.out


def test_the_article_is_what_the_published_runs_give(tmp_path: Path) -> None:
    output = tmp_path / "ring.jsonl"
    ended = _well("rescore", "tpu-v5e-ring", "--reference", "laptop", "--prompts", "laptop", "-o", output)
    assert ended.out.splitlines() == [
        f"{output}: 5 rows, 0 with another verdict, 3 found",
        "laptop: the same answer on 5 of 5 prompts, 2 of them wrong ones",
    ]
    before, after = read_results(published.results_file("tpu-v5e-ring")), read_results(output)
    assert [row.model_copy(update={"agreement": {}}) for row in after] == before
    laptop = read_results(published.results_file("laptop"))
    assert [(row.agreement["laptop"].answer, row.agreement["laptop"].same) for row in after] == [
        (other.answer, True) for other in laptop
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "no-record", "record": None},
        {"outcome": "found", "found": True},
        {"answer": "000000", "codes": ["000000"]},
        {"answer": None, "codes": [], "outcome": "no-code", "record": None},
    ],
)
def test_a_wrong_verdict_is_mended_and_named(runs: Path, rows: Path, wrong: dict[str, Any]) -> None:
    good = _change(rows, 4, **wrong)
    assert (good.outcome, good.record) == (Outcome.OTHER_RECORD, 1)
    bad = read_results(rows)[4]
    ended = _well("rescore", rows, "--prompts", runs / "manifest.jsonl", "-o", rows)
    others = {"answer_from_end"}  # only a tokenizer could tell it again
    assert [row.model_dump(exclude=others) for row in read_results(rows)] == [
        row.model_dump(exclude=others) for row in read_results(runs / "first-record.jsonl")
    ]
    line, summary = ended.out.splitlines()
    assert line.startswith(f"{good.prompt_id}: {bad.outcome}")
    assert line.endswith(f"-> other-record {good.answer} of record 1")
    assert summary == f"{rows}: 6 rows, 1 with another verdict, 3 found"


def test_how_far_its_record_is_from_the_end_is_kept_taken_over_or_unknown(runs: Path) -> None:
    row = read_results(runs / "first-record.jsonl")[4]
    codes = {prompt.id: prompt.codes() for prompt in read_prompts(runs / "manifest.jsonl")}[row.prompt_id]
    assert None not in (row.answer_from_end, row.asked_from_end)
    assert row.answer_from_end != row.asked_from_end
    assert _judged(row, runs).answer_from_end == row.answer_from_end
    assert _judged(row, runs, reply=row.code).answer_from_end == row.asked_from_end
    assert _judged(row, runs, reply=codes[1]).answer_from_end is None
    assert _judged(row, runs, reply="none").answer_from_end is None


def test_a_cut_off_answer_counts_once_a_code_is_read_in_it(runs: Path) -> None:
    row = read_results(runs / "ring.jsonl")[0]
    assert (row.status, row.note, row.cut_off) == ("invalid", CUT_OFF, True)
    judged = _judged(row, runs, agreement={}, reply=f"It is {row.code}")
    assert (judged.status, judged.note, judged.found) == ("ok", None, True)


def test_an_answer_in_which_no_code_is_read_any_more_was_cut_off(runs: Path) -> None:
    row = read_results(runs / "oracle.jsonl")[0]
    judged = _judged(row, runs, finish="length", reply="It is 12345", note="an odd engine")
    assert (judged.status, judged.note, judged.outcome) == ("invalid", CUT_OFF, Outcome.NO_CODE)
    ended = _judged(row, runs, reply="It is 12345", note="an odd engine")
    assert (ended.status, ended.note, ended.outcome) == ("ok", "an odd engine", Outcome.NO_CODE)


def test_what_was_not_read_whole_stays_invalid_and_what_nobody_counted_stays_as_it_is(runs: Path) -> None:
    row = read_results(runs / "ring.jsonl")[0].model_copy(update={"agreement": {}})
    cut = _judged(row, runs, tokens_read=9, reply=row.code, note="cut")
    assert (cut.status, cut.found) == ("invalid", True)
    assert "the engine read 9" in str(cut.note)
    uncounted = _judged(row, runs, tokens_read=None, reply=row.code, note="no count")
    assert (uncounted.status, uncounted.note, uncounted.found) == ("invalid", "no count", True)


def test_a_row_without_a_reply_is_left_alone(runs: Path) -> None:
    row = read_results(runs / "oracle.jsonl")[0]
    nothing: dict[str, Any] = {"reply": None, "answer": None, "codes": [], "outcome": None, "found": False}
    error = row.model_copy(update=nothing | {"record": None, "status": "error", "note": "it broke"})
    assert _judged(error, runs) == error


@pytest.mark.parametrize("codes", [[], ["111111", "222222"]])
def test_a_published_row_is_judged_by_its_codes_where_it_has_no_answer(runs: Path, codes: list[str]) -> None:
    row = read_results(runs / "oracle.jsonl")[0]
    judged = _judged(row, runs, reply=None, answer=None, codes=codes)
    assert (judged.answer, judged.codes) == (None, codes)
    assert judged.outcome is (Outcome.SEVERAL_CODES if codes else Outcome.NO_CODE)


def test_without_prompts_a_verdict_stands_and_only_agreement_is_made(runs: Path, rows: Path) -> None:
    bad = _change(rows, 0, answer="000000", codes=["000000"], outcome="no-record", found=False, record=None)
    assert bad.found
    ended = _well("rescore", rows, "--reference", runs / "oracle.jsonl", "-o", rows)
    after = read_results(rows)
    assert after[0].answer == "000000"
    assert [row.agreement["oracle"].same for row in after] == [False, *(row.found for row in after[1:])]
    assert ended.out.splitlines()[-1] == "oracle: the same answer on 2 of 6 prompts, 0 of them wrong ones"


def test_agreement_with_a_reference_that_is_not_given_again_is_kept_only_under_the_same_verdict(
    runs: Path, rows: Path
) -> None:
    _well("rescore", rows, "--reference", runs / "oracle.jsonl", "-o", rows)
    _well("rescore", rows, "--reference", runs / "ring.jsonl", "--prompts", runs / "set.jsonl", "-o", rows)
    assert {tuple(row.agreement) for row in read_results(rows)} == {("oracle", "ring")}
    first = _change(rows, 0, reply="none")
    before = rows.read_bytes()
    ended = run_recall("rescore", rows, "--prompts", runs / "set.jsonl", "-o", rows)
    assert (ended.code, rows.read_bytes()) == (2, before)
    sentence = f"the row for prompt {first.prompt_id!r} agreed with oracle by codes that it no longer has; give "
    assert sentence + "--reference oracle again" in ended.err
    again = ["--reference", runs / "oracle.jsonl", "--reference", runs / "ring.jsonl"]
    _well("rescore", rows, "--prompts", runs / "set.jsonl", *again, "-o", rows)
    assert [row.agreement["oracle"].same for row in read_results(rows)] == [False, True, True, False, False, False]


def test_a_run_goes_on_in_a_rescored_file_with_the_references_it_has_now(
    runs: Path, rows: Path, small_model: Callable[[str], Path], tmp_path: Path
) -> None:
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join(lines[:4]))
    oracle = tmp_path / "oracle.jsonl"
    oracle.write_text("".join((runs / "oracle.jsonl").read_text().splitlines(keepends=True)[1:]))
    _well("rescore", rows, "--reference", oracle, "--prompts", runs / "set.jsonl", "-o", rows)
    rescored = rows.read_bytes()
    engine = ["--engine", "first-record", "--model", small_model("gemma3"), "-o", rows]
    ended = run_recall("score", runs / "set.jsonl", *engine)
    assert (ended.code, rows.read_bytes()) == (2, rescored)
    assert "was made with another --reference (['oracle'], now [])" in ended.err
    _well("score", runs / "set.jsonl", *engine, "--reference", oracle)
    assert rows.read_bytes().startswith(rescored)
    # The reference has no row for the first prompt: one that it had before is not kept.
    assert [list(row.agreement) for row in read_results(rows)] == [[], *[["oracle"]] * 5]


def test_agreement_with_a_row_that_a_reference_no_longer_has_is_dropped(runs: Path, rows: Path, tmp_path: Path) -> None:
    _well("rescore", rows, "--reference", runs / "oracle.jsonl", "-o", rows)
    shorter = tmp_path / "oracle.jsonl"
    shorter.write_text("".join((runs / "oracle.jsonl").read_text().splitlines(keepends=True)[1:]))
    _well("rescore", rows, "--reference", shorter, "-o", rows)
    assert [list(row.agreement) for row in read_results(rows)] == [[], *[["oracle"]] * 5]


def test_what_cannot_be_rescored_is_refused_in_one_sentence_and_its_file_left_as_it_was(
    runs: Path, rows: Path, tmp_path: Path
) -> None:
    other, part, empty = (tmp_path / name for name in ("other.jsonl", "part.jsonl", "empty.jsonl"))
    lines = (runs / "set.jsonl").read_text().splitlines(keepends=True)
    swapped = [json.loads(line) for line in lines]
    for prompt, name in zip(swapped, [prompt["id"] for prompt in reversed(swapped)], strict=True):
        prompt["id"] = name
    other.write_text("".join(json.dumps(prompt) + "\n" for prompt in swapped))
    part.write_text("".join(lines[:-1]))
    empty.touch()
    last = read_results(rows)[-1].prompt_id
    before = rows.read_bytes()
    refused: dict[Sequence[object], str] = {
        (rows, "-o", rows): "there is nothing to rescore by: give --prompts, --reference, or both",
        (rows, "--prompts", part, "-o", rows): f"the row for prompt {last!r} belongs to another set",
        (rows, "--prompts", other, "-o", rows): "answers another prompt of that name than the one in --prompts",
        (rows, "--prompts", "none", "-o", rows): "'none' is neither a prompt set nor a published one: give a path, or",
        (rows, "--prompts", rows, "-o", rows): "line 1: not a prompt row (",
        (rows, "--reference", "none", "-o", rows): "'none' is neither a results file nor a published run",
        (rows, "--prompts", part, "-o", part): f"{part} is there already: remove it, or give another -o",
        (rows, "--prompts", other, "-o", tmp_path / "none" / "x"): "answers another prompt of that name",
        (rows, "--reference", rows, "-o", tmp_path / "none" / "x"): "cannot be written (No such file or directory)",
        (empty, "--reference", rows, "-o", empty): "holds no rows yet; score the set first",
    }
    for call, sentence in refused.items():
        ended = run_recall("rescore", *call)
        assert (ended.code, ended.out, rows.read_bytes()) == (2, "", before)
        assert sentence in ended.err.splitlines()[-1]


def test_a_reference_that_answered_another_prompt_of_that_name_is_refused(runs: Path, rows: Path) -> None:
    theirs = rows.with_name("theirs.jsonl")
    theirs.write_bytes(rows.read_bytes())
    second = _change(theirs, 1, prompt_sha256="0" * 64).prompt_id
    before = rows.read_bytes()
    ended = run_recall("rescore", rows, "--reference", theirs, "-o", rows)
    assert (ended.code, rows.read_bytes()) == (2, before)
    assert f"theirs: its row for prompt {second!r} answers another prompt of that name" in ended.err


def test_a_file_whose_writing_fails_halfway_is_as_it_was(rows: Path) -> None:
    def broken() -> Iterator[ResultRow]:
        yield read_results(rows)[0]
        raise KeyboardInterrupt

    before = rows.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_results(rows, broken())
    assert rows.read_bytes() == before
    assert list(rows.parent.iterdir()) == [rows]
