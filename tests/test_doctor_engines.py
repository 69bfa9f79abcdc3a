"""`recall doctor` measures windows and pace on open engines, and asks servers for what a run needs of them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import masking_utils

from engines import EngineOptions, Request, pace
from engines.gguf_export import export_gguf
from engines.pace import forecast_ring
from engines.plan import Costs, make_plan
from engines.ring import RingEngine
from engines.window_reach import Reach, window_reach
from tests.conftest import byte_tokenizer
from tests.doctored import Doctored, prompt_set
from tests.llama_server import llama_server
from tests.misbehaving import MisbehavingServer
from tests.planted import DEFECTS, WINDOW
from tests.small_models import CONFIGS

KEY = "the-key-of-the-tests"


@pytest.fixture(scope="module")
def made_set(small_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_set(tmp_path_factory.mktemp("sets") / "set.jsonl", small_model("llama"))


@pytest.fixture(scope="module")
def gguf(small_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "small.gguf"
    export_gguf(EngineOptions(small_model("llama"), "small"), file, lambda _: None)
    return file


@pytest.fixture(scope="module")
def url(gguf: Path) -> Iterator[str]:
    with llama_server(gguf, slots=2, slot_context=1280, key=KEY) as address:
        yield address


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALL_API_KEY", KEY)


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as server:
        yield server


@pytest.mark.parametrize("engine", ["ring", "hf"])
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "mistral", "qwen2"])
def test_a_window_is_measured_as_its_positions_with_the_query(
    small_model: Callable[[str], Path], engine: str, family: str
) -> None:
    found = Doctored("--engine", engine, "--model", small_model(family), "--context", 512)
    assert (found.code, found.flawed) == (0, [])
    assert f"a query sees {WINDOW} positions, the query itself counted (measured)" in found.of("window", "ok")


def test_a_compiling_engine_s_window_is_measured_without_compiling(small_model: Callable[[str], Path]) -> None:
    more = ["--model", small_model("mistral"), "--mode", "compile", "--context", 512]
    assert "(measured)" in Doctored("--engine", "ring", *more).of("window", "ok")


def test_without_sliding_layers_nothing_is_said_of_a_window(small_model: Callable[[str], Path]) -> None:
    found = Doctored("--engine", "ring", "--model", small_model("llama"))
    assert found.code == 0
    assert "window" not in found.checks


@pytest.mark.parametrize(
    ("name", "what"), [("window one too wide", "sees more than 48"), ("window one too narrow", "does not see all 48")]
)
def test_a_ring_with_another_window_is_a_problem(
    small_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    DEFECTS[name].plant(monkeypatch)
    found = Doctored("--engine", "ring", "--model", small_model("gemma3"))
    assert found.code == 4
    assert what in found.of("window", "problem")


@pytest.mark.parametrize(("off", "what"), [(1, "sees more than 48"), (-1, "does not see all 48")])
def test_a_plain_pass_with_another_window_is_a_problem(
    small_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, off: int, what: str
) -> None:
    overlay = masking_utils.sliding_window_overlay
    monkeypatch.setattr(masking_utils, "sliding_window_overlay", lambda window: overlay(window + off))
    found = Doctored("--engine", "hf", "--model", small_model("mistral"), "--context", 512)
    assert what in found.of("window", "problem")


def test_a_window_behind_a_full_layer_is_measured_through_itself_alone(small_model: Callable[[str], Path]) -> None:
    # Qwen2's first layers are full ones: through them a changed token would reach every query.
    assert window_reach(RingEngine(EngineOptions(small_model("qwen2"), "qwen2"))) == Reach(WINDOW, True, False)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_forecast_scales_a_piece_by_flops_and_a_step_by_bytes(
    small_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    engine = RingEngine(EngineOptions(small_model("gemma3"), "gemma3"))
    engine.fixed_shapes = fixed
    context, prompt, begin = 2048, 1500, 512
    monkeypatch.setattr(pace, "_timed", lambda engine, holds, at: {(context, begin): (7.0, 2.0, 0.5)}[holds, at])
    requests = [Request("a", range(prompt), 10, context), Request("b", range(100), 20, context)]
    forecast = forecast_ring(engine, requests, "fp32", 4)
    plans = [make_plan(engine.config, context, "fp32", 4, tokens) for tokens in (prompt, 100)]
    costs = Costs(engine.config, context, "fp32")
    filled = 1024 if fixed else begin + 256
    rate = costs.piece(256, filled).flops / 2.0
    flops = sum(made.read_flops_compiled if fixed else made.read_flops for made in plans)
    assert forecast.read_s == pytest.approx(flops / rate)
    steps = [(10, 1536 if fixed else prompt), (20, 512 if fixed else 100)]
    moved = sum(count * costs.step(end).bytes for count, end in steps)
    assert forecast.answer_s == pytest.approx(moved * 0.5 / costs.step(filled).bytes)
    assert forecast.ready_s == 7.0


def test_an_engine_answers_after_its_forecast_as_before(small_model: Callable[[str], Path]) -> None:
    engine = RingEngine(EngineOptions(small_model("gemma3"), "gemma3"))
    ids = torch.randint(259, (600,), generator=torch.Generator().manual_seed(1)).tolist()
    request = Request("a", ids, 8, 1024)
    before = engine.complete(request, lambda _: None).ids
    assert forecast_ring(engine, [request], "fp32", 4).total_s > 0
    assert engine.complete(request, lambda _: None).ids == before


@pytest.mark.parametrize("api", ["completions", "llama"])
def test_a_server_that_holds_the_set_has_no_flaw(key: None, url: str, made_set: Path, api: str) -> None:
    found = Doctored(made_set, "--engine", "server", "--url", url, "--model", "small", "--api", api)
    assert (found.code, found.flawed) == (0, [])
    assert "a request may have 1,280 tokens" in found.of("server", "ok")
    assert "one BOS in front" in found.of("tokenizer", "ok")
    assert found.checks >= {"set", "answer", "time"}


def test_a_slot_that_is_smaller_than_the_longest_prompt_and_its_answer_is_a_problem(
    key: None, url: str, made_set: Path
) -> None:
    more = ["--engine", "server", "--url", url, "--model", "small", "--max-new", 400, "--context", 2000]
    found = Doctored(made_set, *more)
    assert found.code == 4
    assert "a request may have 1,280 tokens, and the longest prompt" in found.of("server", "problem")
    assert "--ctx-size" in found.of("server", "problem")


def test_a_server_is_asked_even_where_the_results_cannot_be_written(key: None, url: str, made_set: Path) -> None:
    more = ["--engine", "server", "--url", url, "--model", "small", "-o", "/no/rows.jsonl"]
    found = Doctored(made_set, *more)
    assert (found.code, found.flawed) == (4, ["output"])
    assert found.checks >= {"server", "tokenizer", "set", "answer"}


def test_more_requests_than_slots_are_a_warning(key: None, url: str, made_set: Path) -> None:
    found = Doctored(made_set, "--engine", "server", "--url", url, "--model", "small", "--parallel", 4)
    assert "it answers 2 at once" in found.of("server", "warning")
    assert found.code == 0


def test_a_server_with_another_tokenizer_is_a_problem(
    key: None, url: str, merging_folder: Path, tmp_path: Path
) -> None:
    other = prompt_set(tmp_path / "set.jsonl", merging_folder)
    found = Doctored(other, "--engine", "server", "--url", url, "--model", "small")
    assert "makes other ids" in found.of("tokenizer", "problem")


def test_a_server_that_is_not_there_is_a_problem(made_set: Path) -> None:
    found = Doctored(made_set, "--engine", "server", "--url", "http://127.0.0.1:9", "--model", "m")
    assert found.code == 4
    assert "start the server" in found.of("server", "problem")


@pytest.mark.parametrize(
    ("behaviour", "check", "what"),
    [
        ("no-usage", "answer", "no count of the tokens"),
        ("two-bos", "answer", "the engine read 56 tokens where 55 were sent"),
        ("404", "answer", "does not exist"),
        ("wants-key", "server", "RECALL_API_KEY"),
    ],
)
def test_a_server_whose_answers_would_prove_nothing_is_a_problem(
    misbehaving: MisbehavingServer, byte_folder: Path, behaviour: str, check: str, what: str
) -> None:
    address = ["--url", misbehaving.url(behaviour), "--tokenizer", byte_folder, "--retries", 0]
    found = Doctored("--engine", "server", "--model", "m", *address)
    assert found.code == 4
    assert what in found.of(check, "problem")


def test_a_server_that_tells_no_limits_is_a_warning(
    misbehaving: MisbehavingServer, small_model: Callable[[str], Path], made_set: Path
) -> None:
    address = ["--url", misbehaving.url("well"), "--tokenizer", small_model("llama")]
    found = Doctored(made_set, "--engine", "server", "--model", "m", *address)
    assert "does not say how many tokens a request may have" in found.of("server", "warning")
    assert (found.code, found.flawed) == (0, ["server"])


def test_a_server_that_adds_a_second_bos_is_a_problem(
    misbehaving: MisbehavingServer, small_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = small_model("llama")
    long = prompt_set(tmp_path / "set.jsonl", folder)
    address = ["--url", misbehaving.url("two-bos"), "--tokenizer", folder]
    assert "a second BOS" in Doctored(long, "--engine", "server", "--model", "m", *address).of("answer", "problem")


def test_llama_cpp_has_no_flaw_and_its_context_is_compared(gguf: Path, made_set: Path) -> None:
    more = ["--engine", "llama.cpp", "--model", gguf, "--threads", 1]
    found = Doctored(made_set, *more)
    assert (found.code, found.flawed) == (0, [])
    assert found.checks >= {"memory", "context", "set", "answer", "time"}
    long = Doctored(*more, "--context", 5000)
    assert "the model was trained for 4,096" in long.of("context", "warning")


def test_a_cache_of_llama_cpp_larger_than_memory_is_a_problem_and_it_is_not_started(tmp_path: Path) -> None:
    config = CONFIGS["llama"]()
    config.num_hidden_layers, config.num_key_value_heads, config.head_dim = 16, 4, 256  # 64 KiB a token
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "wide")
    byte_tokenizer().save_pretrained(tmp_path / "wide")
    export_gguf(EngineOptions(tmp_path / "wide", "wide"), tmp_path / "wide.gguf", lambda _: None)
    found = Doctored("--engine", "llama.cpp", "--model", tmp_path / "wide.gguf", "--context", 10**8)
    assert found.code == 4
    assert "GB free" in found.of("memory", "problem")
    assert "answer" not in found.checks


def test_a_gguf_file_that_splits_its_bos_is_a_problem(
    key: None, small_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, file = tmp_path / "model", tmp_path / "split.gguf"
    shutil.copytree(small_model("llama"), folder)
    byte_tokenizer(bos=True).save_pretrained(folder)
    export_gguf(EngineOptions(folder, "split"), file, lambda _: None)
    fine = Doctored("--engine", "llama.cpp", "--model", file, "--threads", 1)
    assert "one BOS in front" in fine.of("tokenizer", "ok")
    _make_bos_plain_text(file)
    found = Doctored("--engine", "llama.cpp", "--model", file, "--threads", 1)
    assert "not one BOS" in found.of("tokenizer", "problem")
    with llama_server(file, slots=1, slot_context=512, key=KEY) as address:
        served = Doctored("--engine", "server", "--url", address, "--model", "split")
    assert "not one BOS" in served.of("tokenizer", "problem")


def _make_bos_plain_text(file: Path) -> None:
    """Mark the BOS as a token like any other, as bad conversions do."""
    from gguf import GGUFReader, TokenType

    field: Any = GGUFReader(file, "r+").fields["tokenizer.ggml.token_type"]
    part = field.parts[field.data[0]]
    assert part[0] == TokenType.CONTROL
    part[0] = TokenType.NORMAL
    part.base.flush()
