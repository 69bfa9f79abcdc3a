"""A reply is judged by its prompt's task: in the scorer, in rescoring, and by engines that know the right answer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import Completion
from generators import TASKS, Prompt, PromptTokenizer, TaskName, make_prompts, read_prompts, seeded_specs
from generators.records import Format
from recall.answers import records_in
from recall.delivery import check_delivery
from recall.results import Outcome, ResultRow, read_results
from recall.scoring import answered, judge_reply, judge_reverse, judge_several
from recall.wrong_answers import Kind, near_miss, wrong_answers
from tests.conftest import Ended, run_recall

# Records 2 and 4 share a code.
CODES = ["111111", "222222", "333333", "222222", "555555", "012345"]
ALL = list(TASKS)
FORMS: list[Format] = ["chat", "completion"]


@pytest.mark.parametrize(
    ("reply", "numbers"),
    [
        ("00033", ["00033"]),
        ("33", ["00033"]),
        ("Record 033.", ["00033"]),
        ("**00033**", ["00033"]),
        ("0 0 0 3 3", ["00033"]),
        ("1,091", ["01091"]),
        ("Code 610395 is that of record 00033.", ["00033"]),  # six digits are no record's number
        ("00033 or 33", ["00033"]),
        ("<think>Record 12?</think>33", ["00033"]),
        ("33 or 34", ["00033", "00034"]),
        ("33, not 00034, not 33", ["00033", "00034"]),
        ("0", ["00000"]),
        ("", []),
        ("record thirty-three", []),
        ("000033", []),
        ("610395", []),
        ("1,610,395", []),
        ("33.5", []),
        ("0.33", []),
        ("<think>33", []),
    ],
)
def test_a_records_number_is_read_strictly_and_zeros_in_front_do_not_matter(reply: str, numbers: list[str]) -> None:
    assert records_in(reply) == numbers


@pytest.mark.parametrize(
    ("reply", "code", "answer", "outcome", "record"),
    [
        ("00003", "333333", "00003", Outcome.FOUND, 3),
        ("It is record 3.", "333333", "00003", Outcome.FOUND, 3),
        ("2", "222222", "00002", Outcome.FOUND, 2),  # two records have the code: either is right
        ("4", "222222", "00004", Outcome.FOUND, 4),
        ("00005", "333333", "00005", Outcome.OTHER_RECORD, 5),
        ("00006", "333333", "00006", Outcome.OTHER_RECORD, 6),
        ("00007", "333333", "00007", Outcome.NO_RECORD, None),
        ("00000", "333333", "00000", Outcome.NO_RECORD, None),
        ("2 and 4", "222222", None, Outcome.SEVERAL_CODES, None),
        ("333333", "333333", None, Outcome.NO_CODE, None),
        ("", "333333", None, Outcome.NO_CODE, None),
    ],
)
def test_a_reply_to_reverse_is_judged_by_the_record_it_names(
    reply: str, code: str, answer: str | None, outcome: Outcome, record: int | None
) -> None:
    verdict = judge_reverse(reply, code, CODES)
    assert (verdict.answer, verdict.outcome, verdict.record) == (answer, outcome, record)


@pytest.mark.parametrize(
    ("reply", "asked", "answer", "outcome", "record", "right"),
    [
        ("333333, 555555, 111111", [3, 5, 1], "333333, 555555, 111111", Outcome.FOUND, 3, 3),
        ("**333,333**\n555 555\n111111.", [3, 5, 1], "333333, 555555, 111111", Outcome.FOUND, 3, 3),
        ("333333 555555 111111, so 333333", [3, 5, 1], "333333, 555555, 111111", Outcome.FOUND, 3, 3),
        ("222222, 555555, 222222", [2, 5, 4], "222222, 555555", Outcome.FOUND, 2, 3),  # two share a code
        ("555555, 333333, 111111", [3, 5, 1], "555555, 333333, 111111", Outcome.PARTIAL, None, 3),
        ("333333, 555555", [3, 5, 1], "333333, 555555", Outcome.PARTIAL, None, 2),
        ("333333, 222222, 111111", [3, 5, 1], "333333, 222222, 111111", Outcome.PARTIAL, None, 2),
        ("333333, 555555, 111111, 222222", [3, 5, 1], "333333, 555555, 111111, 222222", Outcome.PARTIAL, None, 3),
        ("111111", [3, 5, 1], "111111", Outcome.PARTIAL, None, 1),
        ("222222 and 012345", [3, 5, 1], "222222, 012345", Outcome.OTHER_RECORD, None, 0),
        ("222222 and 999999", [3, 5, 1], "222222, 999999", Outcome.NO_RECORD, None, 0),
        ("3, 5 and 1", [3, 5, 1], None, Outcome.NO_CODE, None, 0),
    ],
)
def test_a_reply_to_several_is_found_only_with_all_codes_in_the_order_asked(
    reply: str, asked: list[int], answer: str | None, outcome: Outcome, record: int | None, right: int
) -> None:
    verdict = judge_several(reply, asked, CODES)
    told = (verdict.answer, verdict.outcome, verdict.record, verdict.asked_found)
    assert told == (answer, outcome, record, right)


@pytest.fixture(scope="module")
def counter(byte_folder: Path) -> PromptTokenizer:
    return PromptTokenizer(byte_folder)


def _prompt(counter: PromptTokenizer, task: TaskName, form: Format = "completion") -> Prompt:
    specs = seeded_specs(form, seed=5, budgets=[1500], contexts=[], depths=[0.5], task=task)
    return next(make_prompts(specs, counter, form))


def test_near_and_german_are_judged_by_their_own_records(counter: PromptTokenizer) -> None:
    near, german = _prompt(counter, "near"), _prompt(counter, "german")
    changed = near.codes()[near.record]
    assert changed != _prompt(counter, "record").codes()[near.record]
    verdict = judge_reply(changed, near)
    assert (verdict.outcome, verdict.record) == (Outcome.OTHER_RECORD, near.record + 1)
    assert judge_reply(f"Der Code lautet {german.code}.", german).outcome is Outcome.FOUND


@pytest.mark.parametrize(
    ("task", "reply", "flaw"),
    [
        ("several", "", "before it gave all codes"),
        ("several", "111111, 222222", "before it gave all codes"),
        ("several", "111111, 222222, 333333", None),
        ("reverse", "123456", "before it gave a record number"),
        ("reverse", "1", None),
        ("german", "", "before it gave a code"),
        ("german", "111111", None),
    ],
)
def test_an_answer_that_is_cut_off_counts_once_it_gave_what_was_asked_for(
    counter: PromptTokenizer, task: TaskName, reply: str, flaw: str | None
) -> None:
    prompt = _prompt(counter, task)
    completion = Completion(reply, tokens_read=prompt.prompt_tokens, finish="length")
    whole = answered(prompt, judge_reply(reply, prompt))
    note = check_delivery(prompt, prompt.prompt_tokens, completion, answered=whole).note
    assert note == (flaw and f"the answer was cut off {flaw}; give a larger --max-new")


def _well(*arguments: object) -> Ended:
    ended = run_recall(*arguments)
    assert ended.code == 0, ended.err
    return ended


@pytest.fixture(scope="module")
def runs(byte_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of every task and format, its manifest, and the rows of two engines; one finds them all."""
    folder = tmp_path_factory.mktemp("tasks")
    made: list[object]
    for task in ALL:
        for form in FORMS:
            name = f"{task}-{form}"
            made = ["--task", task, "--format", form, "--seed", 3, "--budget", 1200, "--tokenizer", byte_folder]
            made += ["--depth", 0.0, "--depth", 0.6, "--depth", 1.0]
            _well("generate", *made, "-o", folder / f"{name}.jsonl")
            _well("generate", *made, "--manifest", "-o", folder / f"{name}.manifest.jsonl")
            for engine in ("oracle", "first-record"):
                model = ["--engine", engine, "--model", byte_folder]
                _well("score", folder / f"{name}.jsonl", *model, "-o", folder / f"{name}.{engine}.jsonl")
    return folder


EVERY = pytest.mark.parametrize("name", [f"{task}-{form}" for task in ALL for form in FORMS])


@EVERY
def test_the_oracle_finds_all_records_of_every_task(runs: Path, name: str) -> None:
    prompts = read_prompts(runs / f"{name}.jsonl")
    rows = read_results(runs / f"{name}.oracle.jsonl")
    assert len(rows) == 3
    for row, prompt in zip(rows, prompts, strict=True):
        assert (row.outcome, row.found, row.record) == (Outcome.FOUND, True, prompt.record)
        assert (row.task, row.asked_records) == (name.partition("-")[0], prompt.asked_records)
        codes = [prompt.codes()[number - 1] for number in prompt.asked]
        assert row.answer == (f"{prompt.record:05d}" if row.task == "reverse" else ", ".join(codes))
        assert row.asked_found == (3 if row.task == "several" else None)


@EVERY
def test_the_first_record_is_right_only_where_it_is_asked_for(runs: Path, name: str) -> None:
    rows = read_results(runs / f"{name}.first-record.jsonl")
    outcomes = [row.outcome for row in rows]
    if name.startswith("several"):
        prompts = read_prompts(runs / f"{name}.jsonl")
        assert [row.asked_found for row in rows] == [int(1 in prompt.asked) for prompt in prompts]
        assert outcomes[0] is Outcome.PARTIAL
        assert Outcome.FOUND not in outcomes
    else:
        assert outcomes == [Outcome.FOUND, Outcome.OTHER_RECORD, Outcome.OTHER_RECORD]
        assert [row.record for row in rows] == [1, 1, 1]


@EVERY
def test_a_row_tells_how_far_its_records_are_from_the_end(runs: Path, name: str) -> None:
    prompts = read_prompts(runs / f"{name}.jsonl")
    word = "Datensatz {}:" if name.startswith("german") else "Record {:05d}:"
    for row, prompt in zip(read_results(runs / f"{name}.first-record.jsonl"), prompts, strict=True):
        assert prompt.text is not None
        # One token a byte, but for the mark in front: it is one token.
        asked, first = (len(prompt.text) - prompt.text.index(word.format(number)) for number in (prompt.record, 1))
        assert row.asked_from_end == asked
        assert row.answer_from_end == (first if row.record == 1 else None)


@EVERY
@pytest.mark.parametrize("engine", ["oracle", "first-record"])
def test_judging_again_from_the_manifest_changes_nothing(runs: Path, tmp_path: Path, name: str, engine: str) -> None:
    rows = runs / f"{name}.{engine}.jsonl"
    output = tmp_path / "again.jsonl"
    ended = _well("rescore", rows, "--prompts", runs / f"{name}.manifest.jsonl", "-o", output)
    assert "3 rows, 0 with another verdict" in ended.out
    assert output.read_bytes() == rows.read_bytes()


@pytest.mark.parametrize("task", ["several", "reverse", "german"])
def test_a_wrong_verdict_is_mended_by_the_task(runs: Path, tmp_path: Path, task: TaskName) -> None:
    good = runs / f"{task}-chat.oracle.jsonl"
    row = json.loads(good.read_text().splitlines()[0])
    row |= {"outcome": "no-code", "found": False, "codes": [], "answer": None, "record": None, "answer_from_end": None}
    (tmp_path / "bad.jsonl").write_text(json.dumps(row | {"asked_found": None}) + "\n")
    _well("rescore", tmp_path / "bad.jsonl", "--prompts", runs / f"{task}-chat.jsonl", "-o", tmp_path / "bad.jsonl")
    assert read_results(tmp_path / "bad.jsonl") == read_results(good)[:1]


@EVERY
def test_compare_lays_the_answers_of_a_task_side_by_side(runs: Path, name: str) -> None:
    ended = _well("compare", runs / f"{name}.oracle.jsonl", runs / f"{name}.first-record.jsonl")
    mine, theirs = (read_results(runs / f"{name}.{engine}.jsonl") for engine in ("oracle", "first-record"))
    same = sum(row.codes == other.codes for row, other in zip(mine, theirs, strict=True))
    assert same == (0 if name.startswith("several") else 1)
    assert f"the same answer on {same} of 3 prompts, 0 of them wrong ones" in ended.out
    assert str(mine[1].answer) in ended.out
    if name.startswith("several"):
        assert "some of several asked codes" in ended.out


def _row(runs: Path, name: str, **fields: Any) -> ResultRow:
    return read_results(runs / f"{name}.first-record.jsonl")[0].model_copy(update={"found": False} | fields)


def test_wrong_answers_of_other_tasks_are_sorted_and_a_records_number_is_no_near_miss(runs: Path) -> None:
    rows = [
        _row(runs, "reverse-chat", outcome=Outcome.NO_RECORD, answer="99999", code="999999", record=None),
        _row(runs, "reverse-chat", outcome=Outcome.OTHER_RECORD, answer="00003", record=3, asked_record=1),
        _row(runs, "several-chat"),
        _row(runs, "several-chat", outcome=Outcome.NO_RECORD, answer="999999, 888888"),
    ]
    answers = wrong_answers(rows).answers
    assert [answer.kind for answer in answers] == [Kind.NO_RECORD, Kind.OTHER_RECORD, Kind.PARTIAL, Kind.NO_RECORD]
    assert answers[1].records == 2
    assert not near_miss("99999", "999999")


@pytest.mark.parametrize("task", ["near", "several", "german"])
def test_a_sweep_of_a_task_fills_its_cells(byte_folder: Path, tmp_path: Path, task: TaskName) -> None:
    options = ["--engine", "oracle", "--model", byte_folder, "--lengths", "1024,2048", "--depths", 3, "--seeds", 2]
    _well("sweep", *options, "--task", task, "-o", tmp_path / "s.jsonl")
    rows = read_results(tmp_path / "s.jsonl")
    assert len(rows) == 12
    assert all(row.found and row.task == task for row in rows)
    assert rows[0].prompt_id.startswith("chat-several3-" if task == "several" else f"chat-{task}-")
    again = ["--prompts", tmp_path / "s.prompts.jsonl", "-o", tmp_path / "again.jsonl"]
    _well("rescore", tmp_path / "s.jsonl", *again)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "s.jsonl").read_bytes()


def test_one_read_a_seed_answers_near_as_score_does(small_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = small_model("gemma3")
    ring = ["--engine", "ring", "--model", model, "--threads", 1]
    sizes = ["--lengths", "1024,2048", "--depths", 3, "--seeds", 1, "--max-new", 4, "--format", "completion"]
    run_recall("sweep", *ring, *sizes, "--task", "near", "-o", tmp_path / "s.jsonl")
    made: list[object] = ["--task", "near", "--format", "completion", "--answer-room", 4, "--tokenizer", model]
    made += ["--budget", 1024, "--budget", 2048, "--depth", 0.0, "--depth", 0.5, "--depth", 1.0]
    _well("generate", *made, "-o", tmp_path / "set.jsonl")
    run_recall("score", tmp_path / "set.jsonl", *ring, "-o", tmp_path / "alone.jsonl")
    told = {"prompt_id", "prompt_sha256", "reply_ids", "answer_tokens", "outcome", "status", "asked_from_end"}
    swept, alone = (
        {row.prompt_id: row.model_dump(include=told) for row in read_results(tmp_path / f"{name}.jsonl")}
        for name in ("s", "alone")
    )
    assert len(swept) == 6
    assert swept == alone


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("generate --budget 1200 --task several --asked 1", "--asked 1: give 2 or more"),
        ("generate --budget 1200 --asked 3", "--asked 3: --task record asks for one record; give --task several"),
        ("generate --budget 700 --task several --asked 50", "--asked 50: a prompt of --budget 700 holds "),
        ("generate --preset laptop --task near", "--preset laptop fixes its own --task: leave --task out"),
        ("generate --preset laptop --asked 3", "--preset laptop fixes its own --asked: leave --asked out"),
        ("sweep --engine oracle --lengths 1200 --task near --asked 2", "--asked 2: --task near asks for one record"),
        ("generate --budget 1200 --task riddle", "'riddle' is not one of"),
    ],
)
def test_options_that_make_no_task_are_refused(byte_folder: Path, tmp_path: Path, call: str, sentence: str) -> None:
    option = "--model" if call.startswith("sweep") else "--tokenizer"
    ended = run_recall(*call.split(), option, byte_folder, "-o", tmp_path / "new.jsonl")
    assert ended.code == 2
    assert sentence in " ".join(ended.err.split())
    assert list(tmp_path.iterdir()) == []
