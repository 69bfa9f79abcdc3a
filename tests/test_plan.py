"""`recall plan` counts what the ring engine really does, and gives the figures of the published run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from engines import EngineError, EngineOptions
from engines.plan import Cost, Costs, longest_prompt, make_plan, read_eagerly
from engines.programs import Programs
from engines.ring import RingEngine
from engines.ring_cache import PIECE, RingCache
from engines.shapes import SHAPES, shape_config
from recall import cli
from tests.small_models import CONFIGS

META = torch.device("meta")


def _counted(run: Callable[[], object]) -> int:
    """Return the FLOPs that PyTorch itself counts; its other attention kernels are not in its tables on a CPU."""
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _programs(config: Any, context: int) -> Programs:
    with META:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _count_experts(model)
    return Programs(model, RingCache(config, context, META), None, None)


def _small(small_model: Callable[[str], Path], family: str) -> RingEngine:
    engine = RingEngine(EngineOptions(small_model(family), family))
    _count_experts(engine.loaded.model)
    return engine


def _count_experts(model: Any) -> None:
    """Make a model multiply with its experts as PyTorch counts it, and without a need of values for its shapes."""
    if getattr(model.config, "enable_moe_block", False):
        model.set_experts_implementation("batched_mm")


@pytest.mark.parametrize(("context", "gigabytes"), [(33_024, 0.212), (131_328, 0.816)])
def test_the_cache_of_e2b_takes_what_the_article_measured(context: int, gigabytes: float) -> None:
    made = make_plan(shape_config("gemma-4-e2b"), context, "bf16", 4, 1000)
    assert round(made.cache_bytes / 1e9, 3) == gigabytes


def test_reading_e2b_s_longest_prompt_takes_less_than_a_fifth_of_every_slot_through_every_layer() -> None:
    made = make_plan(shape_config("gemma-4-e2b"), 131_328, "bf16", 4, 130_981)
    assert made.read_flops <= 0.18 * made.read_flops_every_slot_every_layer
    assert made.read_flops <= made.read_flops_compiled <= 0.21 * made.read_flops_every_slot_every_layer


@pytest.mark.parametrize("shape", ["gemma-4-e2b", "gemma-4-26b-a4b", "gemma-3-270m"])
@pytest.mark.parametrize(("tokens", "visible"), [(PIECE, PIECE), (PIECE, 8192), (165, 1000)])
def test_both_programs_take_the_flops_that_pytorch_counts_in_them(shape: str, tokens: int, visible: int) -> None:
    config = shape_config(shape)
    programs, costs = _programs(config, 8192), Costs(config, 8192, "bf16")

    def ids(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(count, dtype=torch.long, device=META), torch.arange(count, device=META)

    assert _counted(lambda: programs.piece(*ids(tokens), visible)) == costs.piece(tokens, visible).flops
    assert _counted(lambda: programs.step(*ids(1), visible)) == costs.step(visible).flops


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("tokens", [1, 257, 700])
def test_a_whole_prompt_takes_the_flops_that_pytorch_counts_in_the_engine(
    small_model: Callable[[str], Path], family: str, tokens: int
) -> None:
    engine = _small(small_model, family)
    _, programs = engine.prepare(2048)
    counted = _counted(lambda: engine.read(programs, [5] * tokens))
    assert counted == sum(read_eagerly(Costs(engine.config, 2048, "fp32"), tokens), Cost()).flops


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_weights_and_cache_take_the_bytes_that_the_loaded_model_and_its_cache_take(
    small_model: Callable[[str], Path], family: str
) -> None:
    engine = _small(small_model, family)
    cache, programs = engine.prepare(1000)
    engine.read(programs, [5] * 300)
    costs = Costs(engine.config, 1000, "fp32")
    assert costs.cache_bytes == cache.bytes
    assert costs.weight_bytes == sum(weight.nbytes for weight in engine.loaded.model.parameters())


def test_a_step_of_e2b_moves_its_layers_and_vocabulary_and_the_keys_and_values_that_35_layers_attend_to() -> None:
    costs = Costs(shape_config("gemma-4-e2b"), 131_328, "bf16")
    per_layer_table = 2 * 262_144 * 35 * 256
    attended = 2 * (7 * 131_328 * 2 * 512 + 28 * 768 * 2 * 256)
    assert costs.step(131_328).bytes == pytest.approx(costs.weight_bytes - per_layer_table + attended, rel=1e-4)


def test_a_step_through_experts_moves_the_chosen_ones_and_a_piece_at_most_all_of_them() -> None:
    costs = Costs(shape_config("gemma-4-26b-a4b"), 8192, "bf16")
    expert = 2 * 30 * 3 * 2816 * 704  # bytes of one expert in 30 layers
    alone = costs.all_layers(1, 1).bytes
    assert costs.all_layers(2, 1).bytes - alone == pytest.approx(8 * expert, rel=0.01)
    assert costs.all_layers(16, 1).bytes - alone == pytest.approx(120 * expert, rel=0.01)
    assert costs.all_layers(17, 1).bytes - costs.all_layers(16, 1).bytes < 0.01 * expert


def test_the_longest_prompt_leaves_room_for_the_answer_in_the_context_and_in_the_model_s_positions() -> None:
    config = shape_config("gemma-4-e2b")
    assert longest_prompt(config, 33_024, 64) == 32_960
    assert longest_prompt(config, 131_328, 64) == 131_008  # as the published run's largest budget
    with pytest.raises(EngineError, match="no token for a prompt"):
        longest_prompt(config, 64, 64)


def test_the_demo_model_has_the_shape_that_ships_under_its_name(demo_folder: Path) -> None:
    config = json.loads((demo_folder / "config.json").read_text())
    assert {key: config[key] for key in SHAPES["gemma-3-270m"]} == SHAPES["gemma-3-270m"]


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_shape_by_name_is_planned_as_json(shape: str) -> None:
    result = CliRunner().invoke(cli.app, ["plan", "--shape", shape, "--context", "33024", "--json"])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert made["model"] == shape
    assert made["prompt_tokens"] <= 33_024 - 64
    assert 0 < made["step_flops"] < made["read_flops"] < made["read_flops_every_slot_every_layer"]
    assert 0 < made["cache_bytes"] < made["weight_bytes"]
    assert sum(group["count"] for group in made["layers"]) == SHAPES[shape]["num_hidden_layers"]


def test_a_folder_with_nothing_but_a_config_is_planned(tmp_path: Path) -> None:
    CONFIGS["gemma4"]().save_pretrained(tmp_path)
    result = CliRunner().invoke(cli.app, ["plan", "--model", str(tmp_path), "--context", "2048"])
    assert result.exit_code == 0, result.output
    assert "another's" in result.stdout
    assert "reading 1,984 tokens" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--context", "4096"], "give either --shape"),
        (["--context", "4096", "--shape", "gemma-3-270m", "--model", "demo"], "give either --shape"),
        (["--context", "4096", "--shape", "gemma-5"], "give one of gemma-4-e2b"),
        (["--context", "4096", "--model", "demo", "--prompt", "4096"], "no room for an answer"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_mend(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["recall", "plan", *options])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
