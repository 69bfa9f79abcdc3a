"""A reply is judged by the records of its own prompt, and every prompt put to an engine gives one row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import Engine, EngineOptions, open_engine
from generators import Prompt, PromptTokenizer, laptop_specs, make_prompts, seeded_specs
from recall import published
from recall.comparison import compare_runs
from recall.errors import RecallError
from recall.results import Outcome, ResultRow, read_results
from recall.scoring import Run, agreement_with, judge, score

# Records 2, 4 and 5 share a code; so do 1 and 3.
CODES = ["111111", "222222", "111111", "222222", "222222", "012345"]


class Told:
    """Notes what a run tells of its progress."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}
        self.ended: list[str] = []

    def prompt_begins(self, prompt: Prompt) -> None:
        self.read[prompt.id] = 0

    def tokens_read(self, count: int) -> None:
        self.read[list(self.read)[-1]] += count

    def prompt_ends(self, row: ResultRow) -> None:
        self.ended.append(row.prompt_id)


def _score(
    engine: Engine, prompts: Sequence[Prompt], references: Mapping[str, Mapping[str, ResultRow]] | None = None
) -> list[ResultRow]:
    run = Run(max_new=None, context=None, references=references or {})
    run.check(prompts)
    return list(score(engine, prompts, run, Told()))


def _open(name: str, model: Path | str) -> Engine:
    return open_engine(name, EngineOptions(model, Path(model).stem))


@pytest.fixture(scope="module", params=["chat", "completion"])
def prompts(byte_folder: Path, request: pytest.FixtureRequest) -> list[Prompt]:
    specs = seeded_specs(
        request.param, seed=3, budgets=[700, 2048], contexts=[2048], depths=[0.0, 0.5, 1.0], records=[2], count=2
    )
    return list(make_prompts(specs, PromptTokenizer(byte_folder), request.param))


@pytest.fixture(scope="module")
def laptop(gemma: PromptTokenizer) -> list[Prompt]:
    return list(make_prompts(laptop_specs("chat"), gemma, "chat", one_source=True))


@pytest.mark.parametrize(
    ("reply", "asked", "answer", "outcome", "record"),
    [
        ("012345", 6, "012345", Outcome.FOUND, 6),
        ("It is **111,111**.", 1, "111111", Outcome.FOUND, 1),
        ("111111", 3, "111111", Outcome.FOUND, 3),  # shared, the asked record among its owners
        ("222222", 4, "222222", Outcome.FOUND, 4),
        ("012345", 1, "012345", Outcome.OTHER_RECORD, 6),
        ("111111", 6, "111111", Outcome.OTHER_RECORD, [1, 3]),  # shared, the asked record not among its owners
        ("222222", 1, "222222", Outcome.OTHER_RECORD, [2, 4, 5]),
        ("333333", 1, "333333", Outcome.NO_RECORD, None),
        ("111111 or 222222", 1, None, Outcome.SEVERAL_CODES, None),
        ("333333 or 444444", 1, None, Outcome.SEVERAL_CODES, None),
        ("12345", 6, None, Outcome.NO_CODE, None),
        ("", 1, None, Outcome.NO_CODE, None),
    ],
)
def test_a_reply_is_judged_by_its_one_code_and_the_records_that_have_it(
    reply: str, asked: int, answer: str | None, outcome: Outcome, record: int | list[int] | None
) -> None:
    verdict = judge(reply, asked, CODES)
    assert (verdict.answer, verdict.outcome, verdict.record) == (answer, outcome, record)


def test_every_code_of_a_reply_with_several_is_kept_in_order() -> None:
    assert judge("333333, 111111 or 333333", 1, CODES).codes == ["333333", "111111"]


def test_the_oracle_finds_every_record(prompts: list[Prompt], byte_folder: Path) -> None:
    rows = _score(_open("oracle", byte_folder), prompts)
    assert [row.prompt_id for row in rows] == [prompt.id for prompt in prompts]
    for row, prompt in zip(rows, prompts, strict=True):
        assert (row.answer, row.outcome, row.found, row.record) == (prompt.code, Outcome.FOUND, True, prompt.record)


def test_first_record_finds_only_the_first_record(prompts: list[Prompt], byte_folder: Path) -> None:
    rows = _score(_open("first-record", byte_folder), prompts)
    assert {prompt.record == 1 for prompt in prompts} == {True, False}
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.answer == prompt.codes()[0]
        assert row.record == 1
        assert row.found == (prompt.record == 1)


def test_a_row_says_what_was_asked_and_who_answered(prompts: list[Prompt], byte_folder: Path) -> None:
    (row,) = _score(_open("oracle", byte_folder), prompts[2:3])
    prompt = prompts[2]
    told = (row.prompt_sha256, row.context, row.prompt_tokens, row.records, row.asked_record, row.code)
    asked = (prompt.sha256, 2048, prompt.prompt_tokens, prompt.records, prompt.record, prompt.code)
    assert told == asked
    assert (row.engine, row.model, row.max_new, row.status, row.note) == ("oracle", "bytes", 64, "ok", None)
    assert {"recall", "transformers"} <= set(row.versions)
    assert ResultRow.model_validate_json(row.model_dump_json()) == row


def test_published_laptop_answers_rescored_give_the_published_verdicts(laptop: list[Prompt]) -> None:
    file = published.results_file("laptop")
    rescored = _score(_open("recorded", file), laptop)
    known = {row.prompt_id: row for row in read_results(file)}
    assert len(rescored) == len(known) == 5
    for row in rescored:
        fields = {"answer", "codes", "outcome", "record", "found", "prompt_tokens", "records", "asked_record", "code"}
        assert row.model_dump(include=fields) == known[row.prompt_id].model_dump(include=fields)


@pytest.mark.parametrize("name", ["laptop", "tpu-v5e-ring"])
def test_published_rows_hold_the_verdicts_that_judging_their_answers_gives(laptop: list[Prompt], name: str) -> None:
    rows = {row.prompt_id: row for row in read_results(published.results_file(name))}
    for prompt in laptop:
        row = rows[prompt.id]
        verdict = judge(row.answer or "", prompt.record, prompt.codes())
        assert (row.outcome, row.record, row.codes) == (verdict.outcome, verdict.record, verdict.codes)
        assert row.found == (verdict.outcome is Outcome.FOUND)
        assert row.answers(prompt.sha256, prompt.records, prompt.record, prompt.code)


def test_progress_is_told_of_every_token_and_prompt(prompts: list[Prompt], byte_folder: Path) -> None:
    told = Told()
    list(score(_open("oracle", byte_folder), prompts, Run(max_new=None, context=None, references={}), told))
    assert told.read == {prompt.id: prompt.prompt_tokens for prompt in prompts}
    assert told.ended == [prompt.id for prompt in prompts]


@pytest.fixture
def recorded_but_one(prompts: list[Prompt], byte_folder: Path, tmp_path: Path) -> Engine:
    """The oracle's answers, recorded; that to the first prompt is missing."""
    rows = _score(_open("oracle", byte_folder), prompts)
    (tmp_path / "but-one.jsonl").write_text("".join(row.model_dump_json() + "\n" for row in rows[1:]))
    return _open("recorded", tmp_path / "but-one.jsonl")


def test_an_engine_error_gives_a_row_of_status_error_and_the_run_goes_on(
    recorded_but_one: Engine, prompts: list[Prompt]
) -> None:
    rows = _score(recorded_but_one, prompts)
    assert [row.status for row in rows] == ["error"] + ["ok"] * (len(prompts) - 1)
    assert "holds no answer to prompt" in (rows[0].note or "")
    failed = rows[0].model_dump(include={"answer", "outcome", "found", "record", "reply", "reply_ids", "read_s"})
    assert failed == dict.fromkeys(failed, None) | {"found": False}
    assert all(row.found for row in rows[1:])


def test_an_error_counts_neither_way(recorded_but_one: Engine, prompts: list[Prompt], byte_folder: Path) -> None:
    oracle = _score(_open("oracle", byte_folder), prompts)
    rows = _score(recorded_but_one, prompts, {"oracle": {row.prompt_id: row for row in oracle}})
    asked = len(prompts)
    assert rows[0].agreement["oracle"].same is None
    assert rows[0].agreement["oracle"].answer == prompts[0].code
    for comparison in (compare_runs({"mine": rows, "oracle": oracle}), compare_runs({"mine": rows})):
        assert (comparison.runs[0].found, comparison.runs[0].n) == (asked - 1, asked - 1)
        assert [agreed["oracle"].same for agreed in comparison.agreement] == [None] + [True] * (asked - 1)
    other_way = compare_runs({"oracle": oracle, "mine": rows})
    assert other_way.agreement[0]["mine"].same is None


def _reply(row: ResultRow, reply: str, asked: int = 1) -> ResultRow:
    verdict = judge(reply, asked, CODES)
    fields: dict[str, Any] = {name: getattr(verdict, name) for name in ("codes", "answer", "outcome", "record")}
    return row.model_copy(update=fields | {"reply": reply, "found": verdict.outcome is Outcome.FOUND})


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ("111111", "111,111.", True),
        ("333333", "The code is 333333", True),  # wrong, and the same
        ("111111", "222222", False),
        ("111111", "", False),
        ("no idea", "", True),
        ("111111 or 222222", "111111, 222222", True),
        ("111111 or 222222", "111111", False),
        ("111111 or 222222", "", False),
    ],
)
def test_answers_agree_when_their_codes_are_the_same_right_or_wrong(mine: str, theirs: str, same: bool) -> None:
    row = read_results(published.results_file("laptop"))[0]
    agreement = agreement_with(_reply(row, mine), _reply(row, theirs))
    assert agreement.same is same
    assert (agreement.answer, agreement.outcome) == (judge(theirs, 1, CODES).answer, judge(theirs, 1, CODES).outcome)


def test_a_row_tells_each_reference_that_has_its_prompt(prompts: list[Prompt], byte_folder: Path) -> None:
    oracle = {row.prompt_id: row for row in _score(_open("oracle", byte_folder), prompts)}
    partial = {prompts[0].id: oracle[prompts[0].id]}
    rows = _score(_open("first-record", byte_folder), prompts, {"oracle": oracle, "partial": partial})
    assert [list(row.agreement) for row in rows] == [["oracle", "partial"]] + [["oracle"]] * (len(rows) - 1)
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.agreement["oracle"].answer == prompt.code
        assert row.agreement["oracle"].same == (prompt.code == prompt.codes()[0])


def test_an_engine_with_another_tokenizer_is_refused(prompts: list[Prompt], merging_folder: Path) -> None:
    with pytest.raises(RecallError, match=r"merging makes other ids from it than tokenizer 'bytes' did, which counted"):
        _score(_open("oracle", merging_folder), prompts)


def test_a_manifest_cannot_be_scored(prompts: list[Prompt], byte_folder: Path) -> None:
    with pytest.raises(RecallError, match=r"has no text: this is a manifest; make the set with `recall generate`"):
        _score(_open("oracle", byte_folder), [prompt.manifest_line() for prompt in prompts])


def test_a_prompt_that_does_not_fit_its_context_with_its_answer_is_refused_before_any_is_read(
    prompts: list[Prompt],
) -> None:
    longest = max(prompt.prompt_tokens for prompt in prompts)
    Run(max_new=7, context=longest + 7, references={}).check(prompts)
    with pytest.raises(RecallError, match=rf"has {longest} tokens and its answer up to 7: they do not fit into"):
        Run(max_new=7, context=longest + 6, references={}).check(prompts)


@pytest.mark.parametrize(
    "change", [{"prompt_sha256": "0" * 64}, {"asked_record": 77}, {"code": "999999"}, {"records": 1000}]
)
def test_a_reference_that_answered_another_prompt_of_that_name_is_refused(
    prompts: list[Prompt], byte_folder: Path, change: dict[str, object]
) -> None:
    rows = {row.prompt_id: row for row in _score(_open("oracle", byte_folder), prompts)}
    rows[prompts[1].id] = rows[prompts[1].id].model_copy(update=change)
    with pytest.raises(RecallError, match=f"theirs: its row for prompt {prompts[1].id!r} answers another prompt"):
        Run(max_new=None, context=None, references={"theirs": rows}).check(prompts)


def test_a_recorded_error_stays_an_error(recorded_but_one: Engine, prompts: list[Prompt], tmp_path: Path) -> None:
    rows = _score(recorded_but_one, prompts)
    file = tmp_path / "with-an-error.jsonl"
    file.write_text("".join(row.model_dump_json() + "\n" for row in rows))
    assert [row.status for row in _score(_open("recorded", file), prompts)] == [row.status for row in rows]
