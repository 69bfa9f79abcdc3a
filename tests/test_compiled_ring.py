"""The compiled ring engine gives eager's tokens from a number of graphs that is fixed in advance, without a break."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from engines import EngineError, EngineOptions, Request
from engines.hf import HfEngine
from engines.programs import visible_sizes
from engines.ring import RingEngine


def _ids(count: int) -> list[int]:
    source = torch.Generator().manual_seed(count)
    return [0, *torch.randint(3, 259, (count - 1,), generator=source).tolist()]


def _requests(context: int, sizes: list[int]) -> list[Request]:
    return [Request(f"{size}", _ids(size), max_new=12, context=context) for size in sizes]


@pytest.mark.parametrize("family", ["gemma4"])
def test_two_graphs_serve_prompts_of_every_length_with_the_tokens_of_eager_mode(
    small_model: Callable[[str], Path], family: str
) -> None:
    folder = small_model(family)
    compiled = RingEngine(EngineOptions(folder, family, mode="compile", sizes=1, threads=1))
    eager = RingEngine(EngineOptions(folder, family, threads=1))
    for request in _requests(1024, [1, 40, 257, 700, 1012]):
        completion = compiled.complete(request, lambda _: None)
        assert completion.ids == eager.complete(request, lambda _: None).ids
        assert (completion.graphs, completion.breaks) == (2, 0)


def test_each_size_of_the_filled_context_is_a_pair_of_graphs_compiled_before_the_first_prompt(
    small_model: Callable[[str], Path],
) -> None:
    folder = small_model("llama")
    compiled = RingEngine(EngineOptions(folder, "llama", mode="compile", sizes=2, threads=1))
    eager = RingEngine(EngineOptions(folder, "llama", threads=1))
    for request in _requests(768, [20, 500, 600]):
        completion = compiled.complete(request, lambda _: None)
        assert completion.ids == eager.complete(request, lambda _: None).ids
        assert (completion.graphs, completion.breaks) == (4, 0)
    assert compiled.info.settings == {"mode": "compile", "stream": False, "sizes": 2}


def test_sizes_are_whole_pieces_up_to_the_whole_context() -> None:
    assert visible_sizes(33_024, 1) == [33_024]
    assert visible_sizes(33_024, 4) == [8448, 16_640, 24_832, 33_024]
    assert visible_sizes(512, 4) == [256, 512]


def test_reading_tokens_at_the_end_gives_the_answer_that_streaming_gives(small_model: Callable[[str], Path]) -> None:
    folder = small_model("gemma3")
    streamed = RingEngine(EngineOptions(folder, "gemma3", stream=True))
    collected = RingEngine(EngineOptions(folder, "gemma3", stream=False))
    request = Request("p", _ids(300), max_new=40, context=512)
    whole = streamed.complete(request, lambda _: None)
    assert collected.complete(request, lambda _: None).ids == whole.ids
    assert whole.ids is not None
    # A stop in the middle of it: what was decoded behind the stop belongs to nobody's answer.
    stop = next(text for token in whole.ids[5:] if len(text := streamed.loaded.decode([token])) == 1)
    request = Request("p", _ids(300), max_new=40, context=512, stop=stop)
    one, other = (engine.complete(request, lambda _: None) for engine in (streamed, collected))
    assert one.ids == other.ids
    assert len(one.ids or []) < 40
    assert one.decoded < other.decoded == 39


def test_nan_logits_are_an_error_and_no_answer(small_model: Callable[[str], Path]) -> None:
    for stream in (True, False):
        engine = RingEngine(EngineOptions(small_model("llama"), "llama", stream=stream))
        with torch.no_grad():
            engine.loaded.model.lm_head.weight[7, 3] = float("nan")
        with pytest.raises(EngineError, match="NaN"):
            engine.complete(Request("p", _ids(30), max_new=5, context=256), lambda _: None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "gpu"}, "--device 'gpu' is no device"),
        ({"device": "cpu", "mode": "fuse"}, "--mode fuse is TorchTPU's"),
        ({"device": "tpu"}, "finds no TPU on this machine"),
        pytest.param(
            {"device": "cuda"},
            "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device"),
        ),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence_at_once(
    small_model: Callable[[str], Path], options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(EngineError, match=sentence):
        RingEngine(EngineOptions(small_model("llama"), "llama", **options))  # type: ignore[arg-type]


def test_the_plain_reference_refuses_to_be_compiled(small_model: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="--mode compile is for --engine ring"):
        HfEngine(EngineOptions(small_model("llama"), "llama", mode="compile"))


def test_a_reply_keeps_special_tokens_but_its_end_so_that_thinking_marks_are_seen(
    small_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "thinks"
    shutil.copytree(small_model("llama"), folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.save_pretrained(folder)
    loaded = RingEngine(EngineOptions(folder, "thinks")).loaded
    reply = loaded.encode("<think>123456</think>654321</s>")
    assert loaded.decode(reply) == "<think>123456</think>654321"
