"""Prompts that begin alike get from one read the answers that each of them gets alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engines import Completion, EngineError, EngineOptions, Request, sharing
from engines.ring import RingEngine
from engines.shared_read import SharedRead
from tests.small_models import CONFIGS

CONTEXT = 1536
# Where prompts part from the longest: on, before and behind the edges of pieces, and past a wrap of the ring (304).
PARTED = [5, 255, 256, 257, 300, 511, 512, 520, 520, 520, 700, 1025, 1217]


def _requests() -> list[Request]:
    source = torch.Generator().manual_seed(1)
    trunk = [0, *torch.randint(3, 259, (1299,), generator=source).tolist()]
    requests = [Request("longest", trunk, max_new=6, context=CONTEXT)]
    for number, parted in enumerate(PARTED):
        question = torch.randint(3, 259, (3 + 2 * number,), generator=source).tolist()
        requests.append(Request(f"{number}", [*trunk[:parted], *question], max_new=6, context=CONTEXT))
    return requests


def _alone(engine: RingEngine, requests: list[Request]) -> dict[str, Completion]:
    return {request.prompt_id: engine.complete(request, lambda _: None) for request in requests}


def _together(engine: RingEngine, requests: list[Request], batch: int) -> dict[str, Completion]:
    answers = SharedRead(engine, batch).complete_together(requests, lambda _: None)
    return {request.prompt_id: completion for request, completion in answers}


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def engine(small_model: Callable[[str], Path], request: pytest.FixtureRequest) -> RingEngine:
    return RingEngine(EngineOptions(small_model(request.param), request.param, threads=1))


def test_one_by_one_the_logits_are_those_of_each_prompt_alone_to_the_bit_in_any_order(engine: RingEngine) -> None:
    requests = _requests()
    alone = _alone(engine, requests)
    for order in (requests, requests[::-1], requests[5:]):
        together = _together(engine, order, batch=1)
        assert sorted(together) == sorted(request.prompt_id for request in order)
        for name, completion in together.items():
            assert (completion.ids, completion.choices) == (alone[name].ids, alone[name].choices)


@pytest.mark.parametrize("batch", [2, 16])
def test_side_by_side_the_tokens_are_those_of_each_prompt_alone_and_the_logits_within_rounding(
    engine: RingEngine, batch: int
) -> None:
    requests = _requests()
    alone = _alone(engine, requests)
    for order in (requests, requests[::-1]):
        together = _together(engine, order, batch)
        assert sorted(together) == sorted(alone)
        for name, completion in together.items():
            assert completion.ids == alone[name].ids
            assert (completion.finish, completion.tokens_read) == (alone[name].finish, alone[name].tokens_read)
            told = [[choice.logprob for choice in answer.choices or []] for answer in (completion, alone[name])]
            torch.testing.assert_close(torch.tensor(told[0]), torch.tensor(told[1]), rtol=0, atol=1e-3)


def test_compiled_programs_answer_from_one_read_too_and_compile_nothing_more(
    small_model: Callable[[str], Path],
) -> None:
    options = EngineOptions(small_model("gemma4"), "gemma4", threads=1)
    compiled = RingEngine(replace(options, mode="compile", sizes=1))
    requests = _requests()[:8]
    alone = _alone(RingEngine(options), requests)
    together = _together(compiled, requests, batch=1)
    for name, completion in together.items():
        assert (completion.ids, completion.graphs, completion.breaks) == (alone[name].ids, 2, 0)


def test_only_the_longest_prompt_is_read(small_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RingEngine(EngineOptions(small_model("gemma3"), "gemma3", threads=1))
    requests = _requests()
    forwards: list[int] = []
    engine.loaded.model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: forwards.append(inputs[0].shape[-1])
    )
    read: list[int] = []
    list(SharedRead(engine, 16).complete_together(requests, read.append))
    assert sum(read) == len(requests[0].ids)
    tails = sum(len(request.ids) - parted for request, parted in zip(requests[1:], PARTED, strict=True))
    decoded = 5 * len(requests)
    pieces_again = 256 * len({parted // 256 for parted in PARTED})  # what a group shares behind its whole pieces
    assert sum(forwards) <= len(requests[0].ids) + tails + decoded + pieces_again


def test_a_prompt_that_shares_nothing_is_answered_all_the_same(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(EngineOptions(small_model("gemma3"), "gemma3", threads=1))
    longest, *rest = _requests()[:3]
    stranger = Request("stranger", [7] * 600, max_new=6, context=CONTEXT)
    requests = [longest, *rest, stranger]
    alone = _alone(engine, requests)
    for batch in (1, 4):
        together = _together(engine, requests, batch)
        assert {name: answer.ids for name, answer in together.items()} == {
            name: answer.ids for name, answer in alone.items()
        }


def test_answers_end_where_their_stop_text_or_their_room_ends_them(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(EngineOptions(small_model("llama"), "llama", threads=1))
    requests = _requests()
    replies = _alone(engine, requests)
    stop = replies["3"].text[2]  # a text that is sure to come in one of the replies
    stopping = [replace(request, stop=stop, max_new=4) for request in requests]
    alone, together = _alone(engine, stopping), _together(engine, stopping, batch=16)
    assert {answer.finish for answer in alone.values()} == {"stop", "length"}
    for name, answer in alone.items():
        assert (together[name].ids, together[name].finish) == (answer.ids, answer.finish)


def test_a_batch_in_a_mode_of_fixed_shapes_is_refused(small_model: Callable[[str], Path]) -> None:
    options = EngineOptions(small_model("llama"), "llama", mode="compile", threads=1)
    with pytest.raises(EngineError, match="--batch above 1 needs --mode eager"):
        sharing(RingEngine(options), 2)


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_read(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(EngineOptions(small_model("llama"), "llama", threads=1))
    read: list[int] = []
    long = Request("long", [5] * 1534, max_new=6, context=CONTEXT)
    with pytest.raises(EngineError, match="'long' has 1534 tokens"):
        list(SharedRead(engine, 1).complete_together([*_requests(), long], read.append))
    assert read == []
