"""The ring engine gives what transformers' own code gives, at every edge where a cache can go wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import EngineError, EngineOptions, Request, open_engine
from engines.hf import HfEngine
from engines.loading import load_config
from engines.protocol import DType
from engines.ring import RingEngine
from engines.ring_cache import PIECE
from tests.small_models import CONFIGS

# Window 48 and piece 256 in the small models: a ring of 304 slots. 1217 tokens wrap it four times and leave a last
# piece of 193; 1025 leave one of a single token.
SMALL_WINDOW = 48
SMALL_EDGES = [1, 47, 48, 49, 255, 256, 257, 303, 304, 305, 511, 512, 513, 607, 608, 609, 1025, 1217]
# Window 512 in the demo model: a ring of 768 slots. 2305 tokens wrap it three times, the last piece is one token.
DEMO_EDGES = [255, 256, 257, 511, 512, 513, 767, 768, 769, 2305]


def _options(folder: Path, dtype: DType = "fp32", threads: int = 1) -> EngineOptions:
    # One thread: with a small model, two spend their time waiting for each other.
    return EngineOptions(folder, folder.name, dtype=dtype, threads=threads)


def _ids(count: int, vocabulary: int) -> list[int]:
    source = torch.Generator().manual_seed(count)
    return [0, *torch.randint(3, vocabulary, (count - 1,), generator=source).tolist()]


def _logits_of_forward(engine: HfEngine | RingEngine, ids: list[int]) -> torch.Tensor:
    """Logits after the last token, from one forward pass over everything, without a cache."""
    model: Any = engine.loaded.model
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
    return logits


def _logits_of_ring(ring: RingEngine, ids: list[int], context: int) -> torch.Tensor:
    with torch.inference_mode():
        _, programs = ring.prepare(context)
        prompt = torch.tensor(ids)
        ring.fill(programs, prompt[:-1])
        return programs.logits(prompt[-1:], torch.tensor([len(ids) - 1]), len(ids))


@pytest.fixture(scope="module")
def small_pair(small_model: Callable[[str], Path], request: pytest.FixtureRequest) -> tuple[RingEngine, HfEngine]:
    options = _options(small_model(request.param))
    return RingEngine(options), HfEngine(options)


@pytest.fixture(scope="module")
def demo_pair(demo_folder: Path) -> tuple[RingEngine, HfEngine]:
    return RingEngine(_options(demo_folder)), HfEngine(_options(demo_folder))


@pytest.mark.parametrize("small_pair", sorted(CONFIGS), indirect=True)
@pytest.mark.parametrize("tokens", SMALL_EDGES)
def test_small_models_answer_as_generate_does_and_with_its_logits(
    small_pair: tuple[RingEngine, HfEngine], tokens: int
) -> None:
    ring, hf = small_pair
    ids = _ids(tokens, 259)
    # From a short prompt 60 new tokens carry the decode over the window of 48; a long one is past it already.
    request = Request("edge", ids, max_new=60 if tokens < 50 else 8, context=2048)
    assert ring.complete(request, lambda _: None).ids == hf.complete(request, lambda _: None).ids
    torch.testing.assert_close(_logits_of_ring(ring, ids, 2048), _logits_of_forward(hf, ids), rtol=0, atol=1e-3)


@pytest.mark.parametrize("tokens", DEMO_EDGES)
def test_demo_model_answers_as_generate_does_and_with_its_logits(
    demo_pair: tuple[RingEngine, HfEngine], tokens: int
) -> None:
    ring, hf = demo_pair
    ids = [2, *_ids(tokens, 200_000)[1:]]
    request = Request("edge", ids, max_new=8, context=4096)
    assert ring.complete(request, lambda _: None).ids == hf.complete(request, lambda _: None).ids
    torch.testing.assert_close(_logits_of_ring(ring, ids, 4096), _logits_of_forward(hf, ids), rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_bf16_stays_within_the_rounding_of_bf16(small_model: Callable[[str], Path], family: str) -> None:
    ring = RingEngine(_options(small_model(family), "bf16"))
    exact = HfEngine(_options(small_model(family)))
    ids = _ids(609, 259)
    wanted = _logits_of_forward(exact, ids)
    rounding = (_logits_of_forward(ring, ids).float() - wanted).abs().max()  # what plain bf16 loses
    assert (_logits_of_ring(ring, ids, 1024).float() - wanted).abs().max() <= 2 * rounding


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_bf16_gives_the_tokens_of_generate_up_to_ties_that_rounding_explains(
    small_model: Callable[[str], Path], family: str
) -> None:
    options = _options(small_model(family), "bf16")
    ring, hf, exact = RingEngine(options), HfEngine(options), HfEngine(_options(small_model(family)))
    ties = 0
    for tokens in SMALL_EDGES:
        ids = _ids(tokens, 259)
        request = Request("edge", ids, max_new=8, context=2048)
        mine, wanted = (engine.complete(request, lambda _: None).ids or [] for engine in (ring, hf))
        place = next((place for place, pair in enumerate(zip(mine, wanted, strict=False)) if len(set(pair)) > 1), None)
        if place is None:
            assert mine == wanted
            continue
        ties += 1
        ids = ids + wanted[:place]
        logits, true = _logits_of_forward(hf, ids).float(), _logits_of_forward(exact, ids)
        # Both round, each by what plain bf16 loses: that much the two logits may come nearer to each other, twice.
        assert logits[wanted[place]] - logits[mine[place]] <= 2 * 2 * (logits - true).abs().max()
    assert ties <= len(SMALL_EDGES) // 3


def test_a_prompt_that_just_fits_is_read_and_one_token_more_is_refused_before_reading(
    small_model: Callable[[str], Path],
) -> None:
    engine = open_engine("ring", _options(small_model("gemma3")))
    read: list[int] = []
    completion = engine.complete(Request("fits", _ids(500, 259), max_new=12, context=512), read.append)
    assert completion.ids is not None
    assert sum(read) == 500
    read.clear()
    with pytest.raises(EngineError, match="do not fit into a context of 512"):
        engine.complete(Request("too long", _ids(501, 259), max_new=12, context=512), read.append)
    assert read == []


def test_an_earlier_prompt_leaves_nothing_behind(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(_options(small_model("gemma3")))
    short = Request("short", _ids(100, 259), max_new=20, context=2048)
    alone = engine.complete(short, lambda _: None).ids
    engine.complete(Request("long", _ids(1500, 259), max_new=20, context=2048), lambda _: None)
    assert engine.complete(short, lambda _: None).ids == alone


def test_sliding_layers_hold_window_and_piece_and_full_layers_the_context(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(_options(small_model("gemma3")))
    completion = engine.complete(Request("p", _ids(700, 259), max_new=1, context=2048), lambda _: None)
    slots = 4 * (SMALL_WINDOW + PIECE) + 2 * 2048
    heads, size, keys_and_values, bytes_each = 2, 16, 2, 4
    assert completion.cache_bytes == slots * heads * size * keys_and_values * bytes_each


def test_layers_that_share_keys_and_values_store_none(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(_options(small_model("gemma4")))
    completion = engine.complete(Request("p", _ids(300, 259), max_new=1, context=2048), lambda _: None)
    sliding, full = 4 * (SMALL_WINDOW + PIECE) * 16, 2 * 2048 * 32  # six of nine layers store
    assert completion.cache_bytes == (sliding + full) * 2 * 4


def test_a_kind_of_layer_that_the_ring_cannot_hold_is_refused_by_name_before_weights_are_read(tmp_path: Path) -> None:
    import transformers

    config = transformers.Llama4TextConfig(num_hidden_layers=4)
    config.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="chunked_attention"):
        RingEngine(_options(tmp_path))
    assert "full_attention" in load_config(_options(tmp_path)).layer_types
