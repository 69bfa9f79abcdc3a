"""A prompt holds as many records as its budget allows, never one more, and finding out takes few tokenizations."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from generators import GeneratorError, PromptSpec, PromptTokenizer, laptop_specs, make_prompts, seeded_specs
from generators.fitting import most_records
from generators.records import Format, asked_record, draws, question, record_line

LONG = 10_000


class CountingTokenizer(PromptTokenizer):
    """A real tokenizer that notes how long each text was that it tokenized."""

    def __init__(self, source: Path, name: str) -> None:
        super().__init__(source, name)
        self.lengths: list[int] = []

    def encode(self, text: str) -> list[int]:
        ids = super().encode(text)
        self.lengths.append(len(ids))
        return ids


@pytest.fixture(scope="module")
def tokenizers(demo_folder: Path, byte_folder: Path, merging_folder: Path) -> dict[str, CountingTokenizer]:
    folders = {"gemma": demo_folder, "bytes": byte_folder, "merging": merging_folder}
    return {name: CountingTokenizer(folder, name) for name, folder in folders.items()}


def _tokens_with(tokenizer: PromptTokenizer, form: Format, seed: int, records: int, depth: float) -> int:
    lines = [record_line(number, code) for number, code in enumerate(islice(draws(seed), records), 1)]
    message = "".join(lines) + question(asked_record(records, depth), form)
    return len(tokenizer.encode(tokenizer.complete(message, form)))


@pytest.mark.parametrize("form", ["chat", "completion"])
@pytest.mark.parametrize("name", ["gemma", "bytes", "merging"])
def test_a_prompt_never_exceeds_its_budget_and_one_more_record_would(
    tokenizers: dict[str, CountingTokenizer], name: str, form: Format
) -> None:
    tokenizer = tokenizers[name]
    budgets = [300, 301, 302, 329, 330, 331, 512, 1000, 1024, 1025, 2048, 4095, 4096, 8192]
    for depth in (0.25, 1.0):
        specs = seeded_specs(form, seed=5, budgets=budgets, contexts=[8192], depths=[depth])
        for prompt in make_prompts(specs, tokenizer, form):
            assert prompt.budget is not None
            limit = prompt.budget - 64
            assert prompt.prompt_tokens <= limit
            assert prompt.prompt_tokens == _tokens_with(tokenizer, form, 5, prompt.records, depth)
            assert _tokens_with(tokenizer, form, 5, prompt.records + 1, depth) > limit


def test_records_of_the_merging_tokenizer_do_vary_in_cost(tokenizers: dict[str, CountingTokenizer]) -> None:
    costs = {len(tokenizers["merging"].encode(record_line(1, code))) for code in islice(draws(5), 50)}
    assert len(costs) > 2


@pytest.mark.parametrize("room", [0, 1, 64, 500])
def test_room_for_the_answer_is_kept_free_to_the_token(tokenizers: dict[str, CountingTokenizer], room: int) -> None:
    tokenizer = tokenizers["gemma"]
    specs = seeded_specs("chat", seed=5, budgets=[61 + 30 + room], contexts=[], depths=[0.25], answer_room=room)
    (prompt,) = make_prompts(specs, tokenizer, "chat")
    assert (prompt.records, prompt.prompt_tokens, prompt.answer_room) == (2, 91, room)


def test_a_budget_just_large_enough_for_one_record_gives_one_and_one_token_less_is_refused(
    tokenizers: dict[str, CountingTokenizer],
) -> None:
    def make(budget: int) -> int:
        specs = seeded_specs("chat", seed=5, budgets=[budget], contexts=[], depths=[0.25])
        return next(make_prompts(specs, tokenizers["gemma"], "chat")).records

    assert make(61 + 64) == 1
    with pytest.raises(
        GeneratorError, match=r"--budget 124 is too small for one record.*needs 61 tokens.* 64 are kept"
    ):
        make(61 + 64 - 1)


@pytest.mark.parametrize("form", ["chat", "completion"])
@pytest.mark.parametrize("name", ["gemma", "bytes", "merging"])
def test_a_long_prompt_takes_few_tokenizations(
    tokenizers: dict[str, CountingTokenizer], name: str, form: Format
) -> None:
    tokenizer = tokenizers[name]
    specs = seeded_specs(form, seed=5, budgets=[65_536], contexts=[], depths=[0.25])
    tokenizer.lengths.clear()
    list(make_prompts(specs, tokenizer, form))
    allowed = 5 if name == "merging" else 2
    assert sum(length > LONG for length in tokenizer.lengths) <= allowed
    assert sum(length <= LONG for length in tokenizer.lengths) <= 2


def test_each_of_gemmas_long_laptop_prompts_takes_two_long_tokenizations(
    tokenizers: dict[str, CountingTokenizer],
) -> None:
    tokenizer = tokenizers["gemma"]
    for spec in laptop_specs("chat"):
        if spec.budget is None or spec.budget < LONG:
            continue
        tokenizer.lengths.clear()
        (prompt,) = make_prompts([spec], tokenizer, "chat")
        longs = [length for length in tokenizer.lengths if length > LONG]
        assert longs == [prompt.prompt_tokens, prompt.prompt_tokens + 30]


@pytest.mark.parametrize("cost", [lambda n: 31 + 30 * n, lambda n: 70 + 1000 * n, lambda n: 5 + n])
def test_records_of_one_cost_take_at_most_four_tries(cost: Callable[[int], int]) -> None:
    for limit in [*range(cost(1), cost(1) + 3 * cost(2)), 100_000, 1_000_000]:
        tried: list[int] = []

        def tokens(records: int, tried: list[int] = tried) -> int:
            tried.append(records)
            return cost(records)

        most = most_records(tokens, limit)
        assert cost(most) <= limit < cost(most + 1)
        assert len(set(tried)) <= 4


@pytest.mark.parametrize(
    "cost",
    [
        lambda n: 31 + 30 * n + n // 7,
        lambda n: 31 + 30 * n - n // 7,
        lambda n: 31 + 30 * min(n, 100) + 45 * max(n - 100, 0),  # later records cost more than the sample
        lambda n: 31 + 30 * min(n, 100) + 20 * max(n - 100, 0),  # or less
        lambda n: 31 + 30 * n + (n * n) // 50,
    ],
)
def test_records_of_changing_cost_are_counted_to_the_record(cost: Callable[[int], int]) -> None:
    for limit in [*range(cost(1), 1500), *range(9_000, 9_200), 130_000]:
        most = most_records(cost, limit)
        assert cost(most) <= limit < cost(most + 1)


def test_no_record_fits_under_the_cost_of_one() -> None:
    assert most_records(lambda n: 31 + 30 * n, 60) == 0


def test_an_asked_record_behind_the_last_that_fits_is_refused(tokenizers: dict[str, CountingTokenizer]) -> None:
    def spec(record: int) -> PromptSpec:
        return PromptSpec("p", 5, 1, 512, 512, answer_room=0, record=record)

    (prompt,) = make_prompts([spec(16)], tokenizers["gemma"], "chat")
    assert (prompt.records, prompt.record, prompt.code) == (16, 16, prompt.codes()[15])
    with pytest.raises(GeneratorError, match=r"--record 17: a prompt of --budget 512 holds 16 records"):
        list(make_prompts([spec(17)], tokenizers["gemma"], "chat"))
