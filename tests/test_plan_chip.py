"""`recall plan --chip` asks the chip's own compiler: TorchTPU's programs, compiled by libtpu, without a TPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from engines import EngineError, chip, tpu_on_cpu
from engines.plan import make_plan
from engines.shapes import shape_config
from tests.conftest import run_recall
from tests.small_models import CONFIGS


def _planned(*options: object) -> dict[str, Any]:
    ended = run_recall("plan", *options, "--chip", "v5e", "--json")
    assert ended.code == 0, ended.err
    planned: dict[str, Any] = json.loads(ended.out)
    return planned


def test_e2b_at_131_328_fits_a_v5e_with_its_weights_once_and_its_cache_among_arguments_and_outputs() -> None:
    planned = _planned("--shape", "gemma-4-e2b", "--context", 131_328)
    on_chip = planned["on_chip"]
    held = planned["weight_bytes"] + planned["cache_bytes"]
    for program in on_chip["programs"].values():
        # 1%: tables of positions, rotary frequencies, and the chip's tiles.
        assert program["argument_bytes"] == pytest.approx(held, rel=0.01)
        assert program["output_bytes"] == pytest.approx(planned["cache_bytes"], rel=0.01)
        least = program["argument_bytes"] + program["output_bytes"]
        assert least < program["peak_bytes"] <= 1.01 * (least + program["temporary_bytes"])
    piece, step = on_chip["programs"]["piece"], on_chip["programs"]["step"]
    assert on_chip["needed_bytes"] == max(piece["peak_bytes"], step["peak_bytes"]) < on_chip["memory_bytes"]
    assert on_chip["fits"]
    # Its cost analysis counts every operation, ours the matrix products.
    assert planned["step_flops"] < step["flops"] < 1.5 * planned["step_flops"]
    assert on_chip["step_s"] == pytest.approx(planned["step_bytes"] / 819e9)
    assert on_chip["read_s"] == pytest.approx(planned["read_flops_compiled"] / 197e12, rel=0.1)


def test_a_model_too_large_for_the_chip_is_answered_in_the_compiler_s_own_words(tmp_path: Path) -> None:
    large = CONFIGS["gemma4-dense"]()
    large.vocab_size = 300_000_000  # times 32, in bf16: 19.2 GB
    large.save_pretrained(tmp_path)
    ended = run_recall("plan", "--model", tmp_path, "--context", 1024, "--chip", "v5e")
    assert ended.code == 0, ended.err
    assert "does not fit 16 GiB of v5e: piece: RESOURCE_EXHAUSTED" in ended.out
    assert "ms a step" in ended.out


@pytest.mark.parametrize("name", ["torch_tpu", "lammps_jax_pjrt_cpu", "jax", "jaxlib", "libtpu"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks what cannot be imported
    ended = run_recall("plan", "--shape", "gemma-3-270m", "--context", 1024, "--chip", "v5e")
    assert ended.code == 2
    assert f"the package {name} is not installed: pip install 'recall[plan]'" in ended.err


def test_a_missing_c_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tpu_on_cpu._shim.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(EngineError, match="no C compiler"):
        tpu_on_cpu.environment()


def test_a_mixture_of_experts_is_refused_with_the_reason() -> None:
    ended = run_recall("plan", "--shape", "gemma-4-26b-a4b", "--context", 1024, "--chip", "v5e")
    assert ended.code == 2
    assert "cannot compile mixtures of experts" in ended.err


def test_a_chip_that_is_not_known_is_refused_with_those_that_are() -> None:
    ended = run_recall("plan", "--shape", "gemma-3-270m", "--context", 1024, "--chip", "v4")
    assert ended.code == 2
    assert "give one of v5e" in ended.err


@pytest.mark.parametrize(("limit", "message"), [(0.5, "was not done after"), (60, "failed")])
def test_a_child_process_that_does_not_end_well_is_one_sentence(
    limit: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = shape_config("gemma-3-270m")
    plan = make_plan(config, 1024, "bf16", 1, 500)
    monkeypatch.setattr(chip, "LIMIT_S", limit)
    monkeypatch.setenv("PYTHONHASHSEED", "no number" if message == "failed" else "0")
    with pytest.raises(EngineError, match=message):
        chip.plan_for_chip("v5e", config, plan)
