"""The probe raises an alarm for every planted defect of the ring, and none for the ring as it is."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from engines import EngineOptions, ring
from engines.plain_pass import Reference, cases, default_context
from engines.probe import CHECKS, Probe, Row
from engines.protocol import DType, Mode
from engines.ring import RingEngine
from tests.conftest import run_recall
from tests.planted import DEFECTS, WINDOW
from tests.small_models import CONFIGS

Engines = Callable[[str, DType, Mode], RingEngine]
References = Callable[[str, DType], Reference]


@pytest.fixture(scope="module")
def engine_of(small_model: Callable[[str], Path]) -> Engines:
    """Return a new engine over a small model."""

    def engine(family: str, dtype: DType, mode: Mode) -> RingEngine:
        return RingEngine(EngineOptions(small_model(family), family, dtype=dtype, mode=mode))

    return engine


@pytest.fixture(scope="module")
def reference_of(engine_of: Engines) -> References:
    """Return what the plain forward pass of a small model gives; computed once a model and dtype."""

    @cache
    def reference(family: str, dtype: DType) -> Reference:
        engine = engine_of(family, dtype, "eager")
        return Reference(engine.loaded.model, engine.config)

    return reference


def _rows(engine: RingEngine, reference: Reference) -> Iterator[Row]:
    probe = Probe(engine, reference)
    yield from probe.layers_rows()
    yield from probe.logits_rows()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", sorted(DEFECTS))
def test_each_planted_defect_raises_an_alarm(
    engine_of: Engines, reference_of: References, monkeypatch: pytest.MonkeyPatch, name: str, dtype: DType
) -> None:
    defect = DEFECTS[name]
    reference = reference_of(defect.family, dtype)
    engine = engine_of(defect.family, dtype, defect.mode)
    defect.plant(monkeypatch)
    assert any(row.alarm and row.check == defect.check for row in _rows(engine, reference))


@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "llama", "mistral"])
def test_the_engine_as_it_is_raises_none(
    engine_of: Engines, reference_of: References, family: str, dtype: DType, mode: Mode
) -> None:
    rows = list(_rows(engine_of(family, dtype, mode), reference_of(family, dtype)))
    assert [row for row in rows if row.alarm] == []
    assert {row.check for row in rows} == set(CHECKS)


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"gemma3", "gemma4", "llama", "mistral"}))
def test_no_other_layout_raises_one_either(engine_of: Engines, reference_of: References, family: str) -> None:
    rows = _rows(engine_of(family, "bf16", "compile"), reference_of(family, "bf16"))
    assert [row for row in rows if row.alarm] == []


def test_compiled_programs_raise_none_and_compile_nothing_more(
    small_model: Callable[[str], Path], reference_of: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyTorch's own backend that traces a program and then runs it as it is: the compiler's graphs without its cost.
    monkeypatch.setattr(ring, "compiler", lambda options: "eager")
    engine = RingEngine(EngineOptions(small_model("mistral"), "mistral", mode="compile", sizes=1))
    reference = reference_of("mistral", "fp32")
    rows = list(Probe(engine, reference, compiled=True).logits_rows())
    assert [row for row in rows if row.alarm] == []
    with torch.inference_mode():
        _, programs = engine.prepare(reference.context)
    assert (programs.graphs, programs.breaks) == (2, 0)


def test_prompts_end_on_both_sides_of_every_edge() -> None:
    lengths = {case.tokens for case in cases(WINDOW, 1024)}
    ring_slots = WINDOW + 256
    for edge in (WINDOW, 256, 512, ring_slots, 2 * ring_slots, 3 * ring_slots):
        assert lengths >= {edge - 1, edge, edge + 1}
    assert {1, 257, 258, 1021} <= lengths  # first slot; last pieces of 256 and of 1; last slot, decoded into
    assert max(case.tokens + case.steps for case in cases(WINDOW, 1024)) == 1024


def test_the_least_context_that_wraps_three_times_is_taken() -> None:
    assert default_context(WINDOW) == 1024
    assert default_context(512) == 2560
    assert default_context(None) == 1024


@pytest.mark.parametrize("context", [16, 300])
def test_a_context_below_the_first_wrap_is_probed_too(engine_of: Engines, context: int) -> None:
    engine = engine_of("gemma3", "fp32", "eager")
    rows = list(_rows(engine, Reference(engine.loaded.model, engine.config, context)))
    assert rows
    assert [row for row in rows if row.alarm] == []


def test_the_command_ends_with_0_for_the_engine_as_it_is(small_model: Callable[[str], Path]) -> None:
    ended = run_recall("probe", "--model", small_model("llama"), "--dtype", "bf16")
    assert ended.code == 0
    assert "llama, bf16: no alarms in" in ended.out
    assert "padded" in ended.out


def test_the_command_names_each_alarm_and_ends_with_4(
    small_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    DEFECTS["one visible slot too few"].plant(monkeypatch)
    ended = run_recall("probe", "--model", small_model("llama"))
    assert ended.code == 4
    assert "ALARM" in ended.out
    assert "no alarms" not in ended.out
