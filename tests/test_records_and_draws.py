"""The laptop set comes out as it was published, draw for draw and token for token; depths name the records they say."""

from pathlib import Path

import pytest

from generators import Prompt, PromptTokenizer, laptop_specs, make_prompts, read_prompts, write_prompts
from generators.records import asked_record, question, record_line
from recall import published
from recall.results import ResultRow, read_results

# The published table: context, records, draws taken, asked record, its code, length, the laptop's answer, its record.
LAPTOP = [
    (33_024, 1, 1, 1, "915965", 61, "915965", 1),
    (33_024, 135, 136, 33, "610395", 4_081, "610395", 33),
    (33_024, 1_091, 1_092, 272, "713468", 32_761, "319550", 723),
    (131_328, 1_091, 1_092, 272, "390185", 32_761, "390185", 272),
    (131_328, 4_365, 4_366, 1_091, "492097", 130_981, "567239", 91),
]


@pytest.fixture(scope="module")
def laptop(gemma: PromptTokenizer) -> list[Prompt]:
    return list(make_prompts(laptop_specs("chat"), gemma, "chat", one_source=True))


@pytest.fixture(scope="module")
def answers() -> dict[str, ResultRow]:
    return {row.prompt_id: row for row in read_results(published.results_file("laptop"))}


def test_the_laptop_set_has_the_published_records_codes_and_lengths(laptop: list[Prompt]) -> None:
    made = [(each.context, each.records, each.record, each.code, each.prompt_tokens) for each in laptop]
    assert made == [(context, records, asked, code, tokens) for context, records, _, asked, code, tokens, *_ in LAPTOP]


def test_each_laptop_prompt_draws_on_where_the_one_before_it_stopped(laptop: list[Prompt]) -> None:
    expected = []
    taken: dict[int, int] = {}
    for context, _, draws_taken, *_ in LAPTOP:
        expected.append(taken.get(context, 0))
        taken[context] = expected[-1] + draws_taken
    assert [prompt.first_draw for prompt in laptop] == expected


def test_a_record_costs_30_gemma_tokens_and_all_else_31(laptop: list[Prompt]) -> None:
    assert all(prompt.prompt_tokens == 31 + 30 * prompt.records for prompt in laptop)


def test_the_laptop_codes_repeat_as_often_as_published(laptop: list[Prompt]) -> None:
    repeats = [prompt.records - len(set(prompt.codes())) for prompt in laptop]
    assert repeats[3:] == [1, 10]


def test_the_laptop_answers_belong_to_the_published_records(
    laptop: list[Prompt], answers: dict[str, ResultRow]
) -> None:
    for prompt, (*_, answer, record) in zip(laptop, LAPTOP, strict=True):
        assert prompt.codes()[record - 1] == answer
        assert (answers[prompt.id].answer, answers[prompt.id].record) == (answer, record)


def test_the_laptop_set_equals_its_published_manifest(laptop: list[Prompt]) -> None:
    manifest = read_prompts(published.folder("datasets") / "laptop.jsonl")
    assert [prompt.manifest_line() for prompt in laptop] == manifest


def test_a_prompt_text_holds_its_records_in_order_and_asks_for_the_asked_one(laptop: list[Prompt]) -> None:
    for prompt in laptop:
        assert prompt.text is not None
        lines = [record_line(number, code) for number, code in enumerate(prompt.codes(), 1)]
        assert "".join(lines) + question(prompt.record, "chat") in prompt.text
        assert prompt.text.count("Record ") == prompt.records


@pytest.mark.parametrize(
    ("records", "depth", "record"),
    [
        (1, 0.0, 1),
        (1, 0.25, 1),
        (1, 1.0, 1),
        (3, 0.25, 1),
        (135, 0.25, 33),
        (1091, 0.25, 272),
        (4365, 0.25, 1091),
        (100, 0.0, 1),
        (100, 0.5, 50),
        (100, 1.0, 100),
        (100, 0.29, 29),  # 100 * 0.29 is 28.999... in binary
        (100, 0.57, 57),
        (1000, 0.001, 1),
    ],
)
def test_a_depth_names_a_record(records: int, depth: float, record: int) -> None:
    assert asked_record(records, depth) == record


def test_a_completion_breaks_off_the_asked_records_own_line() -> None:
    assert record_line(33, "610395").startswith(question(33, "completion"))
    assert record_line(33, "610395").removeprefix(question(33, "completion")) == " 610395.\n"


def test_reading_a_set_gives_what_was_made(laptop: list[Prompt], tmp_path: Path) -> None:
    assert write_prompts(tmp_path / "laptop.jsonl", laptop) == 5
    assert read_prompts(tmp_path / "laptop.jsonl") == laptop
    assert [file.name for file in tmp_path.iterdir()] == ["laptop.jsonl"]
