"""Every task makes its prompts by seed: pinned wordings and codes, exact lengths, rows that make them again."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from generators import (
    TASKS,
    GeneratorError,
    Prompt,
    PromptTokenizer,
    TaskName,
    make_prompts,
    read_prompts,
    seeded_specs,
    write_prompts,
)
from generators.records import Format, asked_record, draws
from generators.tasks import NEAR_COUNT, NEAR_REACH, near_codes, spread
from recall.commands.generate import PromptTask

# Seed 5, budget 384, depth 0.5, Gemma's tokenizer: these are a promise.
DRAWN = ["753159", "367853", "877820", "475951", "933820", "823985", "982388", "875839", "783704", "655787", "130414"]
NEAR = ["753159", "475991", "877820", "475951", "475911", "823985", "475950", "479951", "783704"]
LINE = {"german": "Datensatz 9: Der geheime Zugangscode von Datensatz 9 lautet 783704.\n"}
SIX = "Answer with the six digits only."
PINNED: dict[tuple[TaskName, Format], tuple[int, int, str, str]] = {
    # asked records' first one, prompt's tokens, beginning of its SHA-256, question
    ("record", "chat"): (4, 301, "059caa18ee11", f"What is the secret access code of record 00004? {SIX}"),
    ("several", "chat"): (
        4,
        291,
        "f489d5e14b7c",
        "What are the secret access codes of records 00004, 00006 and 00001, in this order? "
        "Answer with the six-digit codes only.",
    ),
    ("reverse", "chat"): (
        4,
        304,
        "ea836d76ff74",
        "Which record has the secret access code 475951? Answer with the five digits of its number only.",
    ),
    ("near", "chat"): (4, 301, "9b7645ae7c9e", f"What is the secret access code of record 00004? {SIX}"),
    ("german", "chat"): (
        5,
        296,
        "6e0228d29d50",
        "Wie lautet der geheime Zugangscode von Datensatz 5? Antworte nur mit den sechs Ziffern.",
    ),
    ("record", "completion"): (4, 292, "e1a7ccd53041", "Record 00004: the secret access code of record 00004 is"),
    ("several", "completion"): (
        4,
        295,
        "a078aba237ab",
        "Records 00004, 00006 and 00001: the secret access codes of records 00004, 00006 and 00001, in this order, are",
    ),
    ("reverse", "completion"): (
        4,
        295,
        "b30f19ec574f",
        "Code 475951: the secret access code 475951 is that of record",
    ),
    ("near", "completion"): (4, 292, "bc84832ac8af", "Record 00004: the secret access code of record 00004 is"),
    ("german", "completion"): (
        5,
        308,
        "648b79faf903",
        "Datensatz 5: Der geheime Zugangscode von Datensatz 5 lautet",
    ),
}


@pytest.fixture(scope="module")
def tokenizers(gemma: PromptTokenizer, byte_folder: Path, merging_folder: Path) -> dict[str, PromptTokenizer]:
    return {"demo": gemma, "bytes": PromptTokenizer(byte_folder), "merging": PromptTokenizer(merging_folder)}


def _make(tokenizer: PromptTokenizer, form: Format, task: TaskName, **of: Any) -> list[Prompt]:
    arguments: dict[str, Any] = {"seed": 5, "budgets": [384], "contexts": [], "depths": [0.5]} | of
    return list(make_prompts(seeded_specs(form, task=task, **arguments), tokenizer, form))


@pytest.mark.parametrize(("task", "form"), PINNED)
def test_a_tasks_prompt_is_what_it_has_ever_been(gemma: PromptTokenizer, task: TaskName, form: Format) -> None:
    (prompt,) = _make(gemma, form, task)
    asked, tokens, sha256, question = PINNED[task, form]
    codes = NEAR if task == "near" else DRAWN
    assert (prompt.record, prompt.prompt_tokens, prompt.sha256[:12]) == (asked, tokens, sha256)
    assert prompt.codes() == codes[: prompt.records]
    assert (prompt.code, prompt.task.name) == (codes[asked - 1], task)
    assert prompt.asked_records == ([4, 6, 1] if task == "several" else None)
    line = LINE.get(task, "Record 00008: the secret access code of record 00008 is")
    assert line in prompt.message()
    assert prompt.message().rpartition("\n")[2] == question
    assert prompt.text is not None
    assert "".join(prompt.lines()) + question in prompt.text


def test_the_command_line_offers_all_tasks() -> None:
    assert [task.value for task in PromptTask] == list(TASKS) == list(get_args(TaskName))


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("record", "chat-s5-c512-b384-d0.5"),
        ("several", "chat-several2-s5-c512-b384-d0.5"),
        ("reverse", "chat-reverse-s5-c512-b384-d0.5"),
        ("near", "chat-near-s5-c512-b384-d0.5"),
        ("german", "chat-german-s5-c512-b384-d0.5"),
    ],
)
def test_an_id_names_every_task_but_record(task: TaskName, name: str) -> None:
    asked = 2 if task == "several" else None
    (spec,) = seeded_specs("chat", seed=5, budgets=[384], contexts=[], depths=[0.5], task=task, asked=asked)
    assert spec.id == name


def _again(prompt: Prompt, records: int) -> Prompt:
    """Return a prompt as it would be with another number of records, its depth the same."""
    assert prompt.depth is not None
    record = asked_record(records, prompt.depth)
    source = draws(prompt.seed)
    codes = [next(source) for _ in range(records)]
    asked = prompt.asked_records and spread(record, records, len(prompt.asked_records))
    fields = {"records": records, "record": record, "code": codes[record - 1], "asked_records": asked}
    return prompt.model_copy(update=fields)


@pytest.mark.parametrize("form", ["chat", "completion"])
@pytest.mark.parametrize("task", [task for task in TASKS if task != "record"])
@pytest.mark.parametrize("name", ["demo", "bytes", "merging"])
def test_no_budget_is_exceeded_and_one_more_record_would(
    tokenizers: dict[str, PromptTokenizer], name: str, task: TaskName, form: Format
) -> None:
    tokenizer = tokenizers[name]
    for prompt in _make(tokenizer, form, task, budgets=[640, 641, 1000, 3600], depths=[0.25, 1.0]):
        assert prompt.budget is not None
        sizes = []
        for records in (prompt.records, prompt.records + 1):
            text = tokenizer.complete(_again(prompt, records).message(), form)
            sizes.append(len(tokenizer.encode(text)))
        assert prompt.prompt_tokens == sizes[0] <= prompt.budget - 64 < sizes[1]


def test_german_records_cost_more_tokens_with_more_digits(gemma: PromptTokenizer) -> None:
    line = TASKS["german"].line
    costs = [len(gemma.encode(line(number, "123456"))) for number in (9, 10, 99, 100)]
    assert [more - less for less, more in pairwise(costs)] == [2, 0, 2]


@pytest.mark.parametrize(
    ("first", "records", "count", "asked"),
    [
        (1, 9, 3, [1, 4, 7]),
        (9, 9, 3, [9, 3, 6]),
        (4, 8, 3, [4, 6, 1]),
        (2, 3, 3, [2, 3, 1]),
        (1, 100, 4, [1, 26, 51, 76]),
        (76, 100, 4, [76, 1, 26, 51]),
        (5, 5, 2, [5, 2]),
        (2, 2, 3, [2, 1]),  # no more than there are
    ],
)
def test_several_asked_records_lie_evenly_from_the_first_on(
    first: int, records: int, count: int, asked: list[int]
) -> None:
    assert spread(first, records, count) == asked


def test_spread_records_are_different_ones_among_all() -> None:
    for records in range(1, 40):
        for count in range(1, records + 1):
            for first in (1, records // 2 + 1, records):
                asked = spread(first, records, count)
                assert asked[0] == first
                assert len(set(asked)) == count
                assert all(1 <= number <= records for number in asked)


def test_near_codes_are_the_asked_one_but_for_one_digit() -> None:
    for seed in range(200):
        code = next(draws(seed))
        changed = near_codes(seed, 49, 50, code, 100)
        assert len(changed) == len(set(changed.values())) == NEAR_COUNT
        for number, other in changed.items():
            assert sum(mine != theirs for mine, theirs in zip(code, other, strict=True)) == 1
            assert other[0] != "0"
            assert 0 < abs(number - 50) <= NEAR_REACH


def test_every_neighbour_and_digit_is_drawn_by_some_seed_or_other_place() -> None:
    drawn = [near_codes(seed, 49, 50, "111111", 100) for seed in range(400)]
    assert {number for changed in drawn for number in changed} == {*range(42, 51), *range(50, 59)} - {50}
    assert len({code for changed in drawn for code in changed.values()}) == 6 * 9 - 1
    assert near_codes(5, 49, 50, "111111", 100) != near_codes(5, 50, 50, "111111", 100)


@pytest.mark.parametrize(("record", "records", "count"), [(1, 1, 0), (1, 3, 2), (3, 3, 2), (1, 100, 4), (100, 100, 4)])
def test_near_changes_only_records_that_there_are(record: int, records: int, count: int) -> None:
    for seed in range(50):
        changed = near_codes(seed, record - 1, record, "654321", records)
        assert len(changed) == count
        assert all(1 <= number <= records and number != record for number in changed)


def test_near_changes_the_same_records_in_a_longer_prompt(gemma: PromptTokenizer) -> None:
    short, long = _make(gemma, "completion", "near", budgets=[1024, 2048], depths=[], records=[12])
    assert short.records < long.records
    assert long.codes()[: short.records] == short.codes()
    assert long.codes() != next(iter(_make(gemma, "completion", "record", budgets=[2048]))).codes()


def test_near_prompts_are_alike_up_to_the_first_changed_record(gemma: PromptTokenizer) -> None:
    early, late = _make(gemma, "completion", "near", budgets=[2048], depths=[0.5, 1.0])
    alike = early.record - NEAR_REACH - 1
    assert alike > 0
    assert early.codes()[:alike] == late.codes()[:alike]
    assert early.codes() != late.codes()


def test_record_several_and_reverse_have_the_same_records(gemma: PromptTokenizer) -> None:
    tasks: list[TaskName] = ["record", "several", "reverse"]
    lines = [prompt.lines() for task in tasks for prompt in _make(gemma, "chat", task, budgets=[1024, 2048])]
    longest = max(lines, key=len)
    assert all(longest[: len(some)] == some for some in lines)


@pytest.mark.parametrize("task", TASKS)
def test_reading_a_tasks_set_or_manifest_gives_what_was_made(
    gemma: PromptTokenizer, tmp_path: Path, task: TaskName
) -> None:
    made = _make(gemma, "completion", task, budgets=[512, 1024], depths=[0.0, 1.0])
    write_prompts(tmp_path / "set.jsonl", made)
    write_prompts(tmp_path / "manifest.jsonl", (prompt.manifest_line() for prompt in made))
    assert read_prompts(tmp_path / "set.jsonl") == made
    manifest = read_prompts(tmp_path / "manifest.jsonl")
    assert [prompt.message() for prompt in manifest] == [prompt.message() for prompt in made]
    rows = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert all(("asked_records" in row) == (task == "several") and "text" not in row for row in rows)


@pytest.mark.parametrize(
    ("task", "fields", "sentence"),
    [
        ("record", {"template": {"name": "essays", "version": 1}}, "no task has wording 'essays' of version 1"),
        ("near", {"template": {"name": "near", "version": 2}}, "no task has wording 'near' of version 2"),
        ("record", {"asked_records": [4, 1]}, "asked_records is for task several only"),
        ("several", {"asked_records": None}, "asked_records is missing"),
        ("several", {"asked_records": []}, "are not different records of this prompt, the asked one in front"),
        ("several", {"asked_records": [6, 4, 1]}, "the asked one in front"),
        ("several", {"asked_records": [4, 6, 6]}, "are not different records"),
        ("several", {"asked_records": [4, 9, 1]}, "are not different records of this prompt"),
        ("several", {"asked_records": [4, 6, 0]}, "are not different records of this prompt"),
        ("near", {"code": "475991"}, "seed 5 does not draw code 475991 for record 4"),  # a distractor's
    ],
)
def test_a_row_that_its_task_does_not_make_is_refused(
    gemma: PromptTokenizer, tmp_path: Path, task: TaskName, fields: dict[str, Any], sentence: str
) -> None:
    (prompt,) = _make(gemma, "chat", task)
    (tmp_path / "set.jsonl").write_text(json.dumps(json.loads(prompt.model_dump_json()) | fields))
    with pytest.raises(GeneratorError, match=sentence) as refused:
        read_prompts(tmp_path / "set.jsonl")
    assert str(refused.value).startswith(f"{tmp_path / 'set.jsonl'}, line 1: ")


@pytest.mark.parametrize(
    ("task", "of", "sentence"),
    [
        ("several", {"asked": 1}, "--asked 1: give 2 or more; the other tasks ask for one record"),
        ("near", {"asked": 3}, "--asked 3: --task near asks for one record; give --task several"),
        ("record", {"asked": 1}, "--asked 1: --task record asks for one record"),
        ("several", {"asked": 9}, r"--asked 9: a prompt of --budget 384 holds \d records; give a smaller number"),
        ("reverse", {"depths": [], "records": [99]}, r"--record 99: a prompt of --budget 384 holds 9 records"),
        ("german", {"budgets": [90]}, "--budget 90 is too small for one record"),
    ],
)
def test_arguments_that_make_no_tasks_set_are_refused(
    gemma: PromptTokenizer, task: TaskName, of: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(GeneratorError, match=sentence):
        _make(gemma, "chat", task, **of)
