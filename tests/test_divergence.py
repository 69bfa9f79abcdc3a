"""The divergence of two engines is what its formula gives, and shows a defect of the cache where the window ends."""

import json
from collections.abc import Callable
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engines import EngineOptions, LlamaCppOptions, LogitEngine
from engines.ring import RingEngine
from generators import read_prompts
from recall.divergence import Place, compare_logits, diverge, kl_divergence, logit_difference, summarize
from recall.engine_specs import open_spec, parse_spec
from recall.errors import RecallError
from recall.intervals import wilson
from tests.conftest import Ended, run_recall
from tests.planted import DEFECTS, WINDOW

LAST = 8
# Weights of three tokens at three places, as engine A and engine B see them.
A = [[2, 1, 1], [2, 1, 1], [6, 1, 1]]
B = [[1, 1, 2], [2, 1, 1], [2, 1, 1]]
# KL(A||B): 1/2 ln 2 + 1/4 ln(1/2); 0; 3/4 ln(3/2) + 1/4 ln(1/2).
KL = [log(2) / 4, 0.0, 3 / 4 * log(3) - log(2)]


@pytest.fixture(scope="module")
def model(small_model: Callable[[str], Path]) -> Path:
    return small_model("gemma3")


@pytest.fixture(scope="module")
def prompt_set(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sets") / "set.jsonl"
    sizes = ["--budget", 256, "--budget", 512, "--context", 512]
    assert run_recall("generate", *sizes, "--format", "completion", "--tokenizer", model, "-o", path).code == 0
    return path


def _divergence(a: object, b: object, prompts: Path, *options: object) -> Ended:
    return run_recall("divergence", a, b, "--prompts", prompts, *options)


def _measured(a: object, b: object, prompts: Path) -> dict[str, Any]:
    ended = _divergence(a, b, prompts, "--last", LAST, "--json")
    assert ended.code == 0, ended.err
    measured: dict[str, Any] = json.loads(ended.out)
    return measured


def _open(spec: str) -> LogitEngine:
    return open_spec(parse_spec(spec))


def test_three_places_worked_out_by_hand() -> None:
    # B's second row is shifted as a whole: no softmax sees it.
    places = compare_logits("p", 10, np.log(A), np.log(B) + np.array([[0], [3], [0]]))
    assert [place.kl for place in places] == pytest.approx(KL, abs=1e-15)
    assert [place.logit_difference for place in places] == pytest.approx([log(2), 0, log(3)], abs=1e-15)
    assert [(place.prompt_id, place.position, place.same_top) for place in places] == [
        ("p", 7, False),
        ("p", 8, True),
        ("p", 9, True),
    ]

    summary = summarize(places)
    mean = (KL[0] + KL[2]) / 3
    deviations = (KL[0] - mean) ** 2 + mean**2 + (KL[2] - mean) ** 2
    assert summary.places == 3
    assert summary.mean_kl == pytest.approx(mean)
    assert summary.standard_error == pytest.approx(sqrt(deviations / 2) / sqrt(3))
    between = KL[0] - KL[2]  # of the middle and the largest one, at half and at the whole of the way
    assert summary.percentiles == pytest.approx(
        {50: KL[2], 90: KL[2] + 0.8 * between, 95: KL[2] + 0.9 * between, 99: KL[2] + 0.98 * between}
    )
    assert summary.largest == places[0]
    assert (summary.same_top, summary.same_top_interval) == (2, wilson(2, 3))
    assert summary.logit_difference == pytest.approx(log(3))


def test_the_other_way_round_is_another_divergence() -> None:
    # 1/2 ln(2/3) + 1/2 ln 2
    assert kl_divergence(np.log(B[2]), np.log(A[2])) == pytest.approx(log(2) - log(3) / 2)


def test_a_single_place_has_no_standard_error() -> None:
    assert summarize([Place("p", 0, 0.5, True, 0.1)]).standard_error is None


@pytest.fixture
def rows() -> tuple[Any, Any]:
    """Two rows of logits that lie as far apart as those of two number formats."""
    draw = np.random.default_rng(0)
    a = draw.normal(0, 5, 1000).astype(np.float32)
    return a, (a + draw.normal(0, 0.01, 1000)).astype(np.float32)


def test_nothing_diverges_from_itself(rows: tuple[Any, Any]) -> None:
    (place,) = compare_logits("p", 1, rows[0][None], rows[0][None])
    assert (place.kl, place.same_top, place.logit_difference) == (0, True, 0)


def test_neither_a_shift_nor_another_order_of_the_tokens_changes_anything(rows: tuple[Any, Any]) -> None:
    a, b = rows
    order = np.random.default_rng(1).permutation(len(a))
    kl, difference = kl_divergence(a, b), logit_difference(a, b)
    assert 0 < kl < 1e-3
    for changed in ((a + 16.0, b), (a, b - 1024.0), (a[order], b[order])):
        assert kl_divergence(*changed) == pytest.approx(kl, rel=0.02)  # fp32 rounds what is shifted by 1024
        assert logit_difference(*changed) == pytest.approx(difference, abs=1e-4)
    assert kl_divergence(a[order], b) > 1000 * kl


def test_logits_of_any_size_do_not_overflow() -> None:
    # A is sure of the first token, B finds both equally likely: ln 2.
    assert kl_divergence(np.array([5e4, -5e4]), np.array([7e4, 7e4])) == pytest.approx(log(2))
    # What B all but rules out costs as much as its logit says.
    assert kl_divergence(np.array([0.0, 0.0]), np.array([0.0, -5e4])) == pytest.approx(25_000 - log(2))


def test_it_is_what_pytorch_computes(rows: tuple[Any, Any]) -> None:
    a, b = (torch.from_numpy(row).double().log_softmax(-1) for row in rows)
    expected = torch.nn.functional.kl_div(b, a, log_target=True, reduction="sum")
    assert kl_divergence(*rows) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused_by_prompt_and_engine(value: float) -> None:
    broken = np.array([[0.0, value]])
    with pytest.raises(RecallError, match="prompt 'p': the logits of B are not all finite numbers"):
        compare_logits("p", 1, np.zeros((1, 2)), broken)


def test_logits_over_different_vocabularies_are_refused() -> None:
    with pytest.raises(RecallError, match=r"the logits of A are 1 x 259, those of B 1 x 260: give two engines of one"):
        compare_logits("p", 1, np.zeros((1, 259)), np.zeros((1, 260)))


def test_ring_and_hf_expect_the_same_in_fp32(model: Path, prompt_set: Path) -> None:
    measured = _measured(f"ring:{model}", f"hf:{model}", prompt_set)
    assert (measured["prompts"], measured["places"], measured["same_top"]) == (2, 2 * LAST, 2 * LAST)
    assert 0 <= measured["mean_kl"] <= measured["largest"]["kl"] < 1e-9
    assert measured["logit_difference"] < 1e-3
    prompt = next(prompt for prompt in read_prompts(prompt_set) if prompt.id == measured["largest"]["prompt_id"])
    assert prompt.prompt_tokens - LAST <= measured["largest"]["position"] < prompt.prompt_tokens
    assert [(measured[name]["spec"], measured[name]["engine"]) for name in "ab"] == [
        ("ring:gemma3", "ring"),
        ("hf:gemma3", "hf"),
    ]


def test_bf16_diverges_from_fp32_by_what_pytorch_computes(model: Path, prompt_set: Path) -> None:
    measured = _measured(f"hf:{model}", f"hf:{model},dtype=bf16", prompt_set)
    assert measured["mean_kl"] > 1e-6
    both = [_open(f"hf:{model}"), _open(f"hf:{model},dtype=bf16")]
    summed = 0.0
    for prompt in read_prompts(prompt_set):
        a, b = (
            torch.from_numpy(engine.logits(engine.encode(prompt.text or "") or [], LAST, 512)).double().log_softmax(-1)
            for engine in both
        )
        summed += float(torch.nn.functional.kl_div(b, a, log_target=True, reduction="sum"))
    assert measured["mean_kl"] == pytest.approx(summed / measured["places"], rel=1e-6)
    assert measured["same_top"] <= measured["places"]


def test_a_window_one_too_narrow_shows_past_the_window_and_nowhere_below(
    model: Path, prompt_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = read_prompts(prompt_set)
    plain, ring = _open(f"hf:{model}"), _open(f"ring:{model}")
    DEFECTS["window one too narrow"].plant(monkeypatch)
    for places in diverge(ring, plain, prompts, last=10_000, context=None):
        below, past = places[: WINDOW - 1], places[WINDOW - 1 :]
        assert places[0].position == 0  # a prompt shorter than `last` is compared whole
        assert max(place.kl for place in below) < 1e-9
        assert summarize(past).mean_kl > 1e-4
        assert all(place.same_top for place in below)


@pytest.mark.parametrize(("context", "held"), [(None, 512), (700, 700)])
def test_engines_hold_the_context_that_is_given_or_each_prompts_own(
    model: Path, prompt_set: Path, monkeypatch: pytest.MonkeyPatch, context: int | None, held: int
) -> None:
    asked = []
    prepare = RingEngine.prepare

    def noted(engine: RingEngine, room: int, **others: Any) -> Any:
        asked.append(room)
        return prepare(engine, room, **others)

    monkeypatch.setattr(RingEngine, "prepare", noted)
    ring, plain = _open(f"ring:{model}"), _open(f"hf:{model}")
    assert len(list(diverge(ring, plain, read_prompts(prompt_set)[:1], 1, context))) == 1
    assert asked == [held]


def test_the_lines_say_what_the_object_says(model: Path, prompt_set: Path) -> None:
    specs = (f"ring:{model}", f"hf:{model},dtype=bf16")
    measured = _measured(*specs, prompt_set)
    ended = _divergence(*specs, prompt_set, "--last", LAST)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[:3] == ["A: ring:gemma3", "B: hf:gemma3,dtype=bf16", "16 positions of 2 prompts; KL(A||B) in nats"]
    mean, error = measured["mean_kl"], measured["standard_error"]
    assert lines[3].split() == ["mean", "KL", f"{mean:.4g},", "standard", "error", f"{error:.2g}"]
    assert f"{measured['percentiles']['99']:.3g} (99%)" in lines[4]
    where = measured["largest"]
    assert f"{where['kl']:.3g}, prompt {where['prompt_id']}, position {where['position']}" in lines[5]
    assert f"{measured['same_top']} of 16" in lines[6]
    assert f"{measured['logit_difference']:.3g}" in lines[7]
    for number, prompt in enumerate(read_prompts(prompt_set), 1):
        assert f"[{number}/2] {prompt.id}  mean KL " in ended.err


def test_only_some_prompts_are_compared_where_only_some_are_named(model: Path, prompt_set: Path) -> None:
    second = read_prompts(prompt_set)[1]
    ended = _divergence(f"hf:{model}", f"hf:{model}", prompt_set, "--only", second.prompt_tokens, "--json")
    measured = json.loads(ended.out)
    assert (measured["prompts"], measured["places"], measured["largest"]["prompt_id"]) == (1, 16, second.id)


def test_a_model_that_gives_nan_is_named_with_the_prompt(model: Path, prompt_set: Path, tmp_path: Path) -> None:
    broken = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        broken.get_input_embeddings().weight.fill_(float("nan"))
    broken.save_pretrained(tmp_path / "broken")
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "broken")
    ended = _divergence(f"hf:{model}", f"hf:{tmp_path / 'broken'}", prompt_set)
    first = read_prompts(prompt_set)[0].id
    assert (ended.code, ended.out) == (2, "")
    assert f"recall: B, prompt {first!r}: the model gives NaN logits" in ended.err


def test_what_cannot_be_compared_is_refused_in_one_sentence(
    model: Path, byte_folder: Path, prompt_set: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.jsonl"
    lines = (prompt.manifest_line().model_dump_json() for prompt in read_prompts(prompt_set))
    manifest.write_text("".join(line + "\n" for line in lines))
    good = f"hf:{model}"
    refused = {
        (good, "oracle:demo", prompt_set): "engine 'oracle' gives no logits; give one of ring, hf",
        (good, f"ring:{byte_folder}", prompt_set): "recall: ring:bytes: --model 'bytes': transformers cannot load it (",
        (good, good, manifest): "has no text: this is a manifest",
        (good, good, tmp_path / "none"): "none: cannot be read",
        (good, good, prompt_set, "--context", 100): "they do not fit into --context 100; give a larger one",
        (good, good, prompt_set, "--only", 7): "--only 7: the set has no prompt of that id or size",
    }
    for call, sentence in refused.items():
        ended = run_recall("divergence", *call[:2], "--prompts", *call[2:])
        assert (ended.code, ended.out) == (2, "")
        assert sentence in ended.err.splitlines()[-1]


def test_a_spec_says_how_an_engine_is_opened(model: Path) -> None:
    read = parse_spec(f"ring:{model},mode=compile,sizes=3,threads=2,dtype=bf16,device=cuda:1")
    assert read.engine == "ring"
    assert read.options == EngineOptions(
        str(model), "gemma3", dtype="bf16", device="cuda:1", threads=2, mode="compile", sizes=3
    )
    assert read.shown == "ring:gemma3,mode=compile,sizes=3,threads=2,dtype=bf16,device=cuda:1"


def test_a_spec_without_a_model_is_of_the_demo_model(demo_folder: Path) -> None:
    for spec in ("hf", "hf:demo"):
        assert parse_spec(spec).options == EngineOptions(demo_folder, "demo")
    assert parse_spec("hf,threads=1").shown == "hf:demo,threads=1"


def test_a_spec_of_llama_cpp_has_its_own_keys() -> None:
    read = parse_spec("llama.cpp:demo-f32.gguf,kv_type=f32,flash_attention=no,timeout=9.5,threads=2")
    assert read.options.llama_cpp == LlamaCppOptions("f32", flash_attention=False, timeout_s=9.5)
    assert (read.options.model, read.options.threads) == ("demo-f32.gguf", 2)
    assert parse_spec("llama.cpp:x.gguf,flash_attention=yes").options.llama_cpp == LlamaCppOptions()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "engine '' is unknown; give one of ring, hf"),
        ("vllm:demo", "engine 'vllm' is unknown; give one of ring, hf"),
        ("recorded:laptop", "engine 'recorded' gives no logits; give one of ring, hf"),
        ("ring:,dtype=bf16", "no model is named after the colon; give one, or only 'ring' for the demo one"),
        ("ring:x,dtype", "'dtype' is no setting of engine 'ring'; give KEY=VALUE, KEY one of dtype, device, mode,"),
        ("ring:x,colour=red", "'colour=red' is no setting of engine 'ring'"),
        ("ring:x,", "'' is no setting of engine 'ring'"),
        ("hf:x,mode=compile", "'mode=compile' is no setting of engine 'hf'; give KEY=VALUE, KEY one of dtype, device,"),
        ("ring:x,kv_type=f32", "'kv_type=f32' is no setting of engine 'ring'"),
        ("ring:x,dtype=fp32,dtype=bf16", "dtype is given twice; give it once"),
        ("ring:x,dtype=fp8", "dtype has to be fp32 or bf16, not 'fp8'"),
        ("ring:x,mode=fast", "mode has to be eager, fuse or compile, not 'fast'"),
        ("ring:x,threads=0", "threads has to be a whole number from 1 to 1024, not '0'"),
        ("ring:x,sizes=two", "sizes has to be a whole number from 1 to 1024, not 'two'"),
        ("llama.cpp:x,flash_attention=1", "flash_attention has to be yes or no, not '1'"),
        ("llama.cpp:x,kv_type=q4", "kv_type has to be f32, f16 or q8_0, not 'q4'"),
        ("llama.cpp:x,timeout=nan", "timeout has to be a number of seconds above 0, not 'nan'"),
    ],
)
def test_a_spec_that_is_none_is_refused_with_what_can_be_given(spec: str, sentence: str) -> None:
    with pytest.raises(RecallError) as refused:
        parse_spec(spec)
    assert str(refused.value).startswith(f"{spec!r}: ")
    assert sentence in str(refused.value)
