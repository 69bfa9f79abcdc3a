"""A checkpoint packed to 4 bits answers as its unpacked weights do, and its vocabulary tables stay packed."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engines import EngineError, EngineOptions, Request, packed
from engines.hf import HfEngine
from engines.loading import LoadedModel
from engines.protocol import DType
from engines.ring import RingEngine
from tests.small_models import CONFIGS

GROUP = 32
PARTS = ["packed", "scale", "shape"]
TABLES = ["embed_tokens", "embed_tokens_per_layer"]
# What the repack leaves in bf16 beside its tables.
KEPT = ["re:.*per_layer_input_gate$", "re:.*per_layer_projection$", "re:.*per_layer_model_projection$"]
INT4 = QuantizationScheme(
    targets=["Linear"],
    weights=QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP),
)
PROMPT = [0, *torch.randint(3, 259, (100,), generator=torch.Generator().manual_seed(0)).tolist()]
REQUEST = Request("packed", PROMPT, max_new=12, context=512)


@dataclass(frozen=True)
class Checkpoint:
    """A packed checkpoint under the repack's names, and the same weights as a plain folder."""

    packed: Path
    unpacked: Path


def _gemma4() -> Any:
    config = CONFIGS["gemma4"]()
    config.hidden_size = 2 * GROUP
    config.hidden_size_per_layer_input = GROUP
    config.architectures = ["Gemma4ForCausalLM"]
    config.dtype = "bfloat16"
    return config


def _compressed(tables: bool) -> tuple[dict[str, Tensor], ModelCompressor]:
    """Return the state of a random model that compressed-tensors packed, and what writes its configuration."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(_gemma4(), dtype=torch.bfloat16)
    groups = {"group_0": INT4}
    for table in TABLES if tables else []:
        groups[f"group_{table}"] = INT4.model_copy(update={"targets": [rf"re:.*\.{table}$"]})
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head", *KEPT]))
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            module.weight.data.mul_(4)  # as in conftest: random logits are too close to each other
            rows = module.weight.detach().float().unflatten(-1, (-1, GROUP))
            scale, _ = calculate_qparams(rows.amin(-1), rows.amax(-1), INT4.weights)
            module.weight_scale.data.copy_(scale)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    # Packing an embedding makes compressed-tensors store its multiplier, which no published checkpoint has.
    state = {key: value for key, value in state.items() if not key.endswith("embed_scale")}
    return {key: value for key, value in state.items() if not key.startswith("lm_head.")}, compressor


def _unpacked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a plain model: what compressed-tensors unpacks, whole."""
    plain = {key: value for key, value in state.items() if ".weight_" not in key}
    for key in state:
        if key.endswith(".weight_packed"):
            name = key.removesuffix("_packed")
            parts = {f"weight_{part}": state[f"{name}_{part}"] for part in PARTS}
            if parts["weight_scale"].dtype is torch.float16:  # the product in fp32, not in fp16 and then bf16
                parts["weight_scale"] = parts["weight_scale"].float()
            plain[name] = BaseCompressor.get_value_from_registry("pack-quantized").decompress(parts, INT4)["weight"]
            plain[name] = plain[name].to(torch.bfloat16)
    return plain


def _give_own_head(state: dict[str, Tensor]) -> None:
    """Make a state as published: the head repeats the vocabulary's table, and the tables' scales are fp16."""
    for table in TABLES:
        scale = state[f"model.{table}.weight_scale"].float()
        state[f"model.{table}.weight_scale"] = (scale * 1.001).half()  # with digits that bf16 does not have
    for part in PARTS:
        state[f"lm_head.weight_{part}"] = state[f"model.embed_tokens.weight_{part}"].clone()


def _write(folder: Path, state: dict[str, Tensor], *, tied: bool, compressor: ModelCompressor | None = None) -> Path:
    config = _gemma4()
    config.tie_word_embeddings = tied
    config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    if compressor is not None:
        compressor.update_config(str(folder))
    return folder


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state under the names, and with the leftovers, of a text model cut out of a multimodal one."""
    # Published E2B checkpoints still have the keys and values of layers that use another one's.
    unused = {
        key.replace("layers.5.", "layers.8."): state[key].clone() for key in state if "layers.5.self_attn.k_" in key
    }
    return {key.replace("model.", "model.language_model.", 1): value for key, value in (state | unused).items()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, byte_folder: Path) -> Callable[[str], Checkpoint]:
    """Return a checkpoint: `bf16` tables, packed tables with a `tied` head, or with a head of its own, `untied`."""
    made: dict[str, Checkpoint] = {}

    def make(tables: str) -> Checkpoint:
        if tables not in made:
            state, compressor = _compressed(tables != "bf16")
            if tables == "untied":
                _give_own_head(state)
            root, tied = tmp_path_factory.mktemp(tables), tables != "untied"
            made[tables] = Checkpoint(
                _write(root / "packed", _renamed(state), tied=tied, compressor=compressor),
                _write(root / "unpacked", _unpacked(state), tied=tied),
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(byte_folder)
            tokenizer.save_pretrained(root / "packed")
            tokenizer.save_pretrained(root / "unpacked")
        return made[tables]

    return make


def _options(folder: Path, dtype: DType = "bf16") -> EngineOptions:
    return EngineOptions(folder, folder.name, dtype=dtype)


def _load(folder: Path) -> Any:
    return LoadedModel(_options(folder)).model


def _logits(model: Any) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([PROMPT]), use_cache=False).logits
    return logits


def _copied(folder: Path, to: Path, state: dict[str, Tensor], **config: Any) -> Path:
    """Write a copy of a checkpoint with another state and other entries in its configuration."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    entries = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(entries | config))
    return to


@pytest.mark.parametrize("tables", ["bf16", "tied", "untied"])
def test_a_packed_checkpoint_gives_the_logits_of_its_unpacked_weights_bit_for_bit(
    checkpoint: Callable[[str], Checkpoint], tables: str
) -> None:
    folders = checkpoint(tables)
    assert torch.equal(_logits(_load(folders.packed)), _logits(_load(folders.unpacked)))


@pytest.mark.parametrize("engine", [RingEngine, HfEngine])
@pytest.mark.parametrize("tables", ["bf16", "tied", "untied"])
def test_an_engine_answers_from_a_packed_checkpoint_as_from_its_unpacked_weights(
    checkpoint: Callable[[str], Checkpoint], tables: str, engine: type[RingEngine | HfEngine]
) -> None:
    folders = checkpoint(tables)
    ours = engine(_options(folders.packed)).complete(REQUEST, lambda _: None).ids
    assert ours == engine(_options(folders.unpacked)).complete(REQUEST, lambda _: None).ids


@pytest.mark.parametrize("tables", ["bf16", "tied", "untied"])
def test_ring_answers_from_a_packed_checkpoint_as_generate_does(
    checkpoint: Callable[[str], Checkpoint], tables: str
) -> None:
    options = _options(checkpoint(tables).packed, "fp32")  # in bf16 two ways to sum may part
    ours = RingEngine(options).complete(REQUEST, lambda _: None).ids
    assert ours == HfEngine(options).complete(REQUEST, lambda _: None).ids


@pytest.mark.parametrize("tables", ["tied", "untied"])
@pytest.mark.parametrize("table", TABLES)
def test_a_packed_table_gives_every_row_of_the_table_unpacked_whole_bit_for_bit(
    checkpoint: Callable[[str], Checkpoint], tables: str, table: str
) -> None:
    folders = checkpoint(tables)
    ours = _load(folders.packed).model.get_submodule(table)
    whole = _load(folders.unpacked).model.get_submodule(table)
    ids = torch.arange(259).flip(0).reshape(7, 37)
    assert isinstance(ours, packed.PackedEmbedding)
    assert torch.equal(ours.look_up(ids), whole.weight[ids])
    assert torch.equal(ours(ids), whole(ids))  # times the multiplier


@pytest.mark.parametrize(("width", "groups"), [(288, 9), (64, 1), (12, 3), (13, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_unpack_to_the_levels_that_compressed_tensors_packed(width: int, groups: int, dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(width)
    levels = torch.randint(-8, 8, (40, width), generator=source, dtype=torch.int8)
    scale = torch.rand(40, groups, generator=source).to(torch.bfloat16)
    words = pack_to_int32(levels, 4)
    assert torch.equal(unpack_from_int32(words, 4, levels.shape), levels)
    wanted = levels.float() * scale.float().repeat_interleave(width // groups, dim=1)
    assert torch.equal(packed.unpack(words, scale, width, dtype), wanted.to(dtype))


def test_a_head_gives_the_same_logits_in_blocks_of_any_size(
    checkpoint: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _load(checkpoint("untied").packed)
    at_once = _logits(model)
    for rows in (50, 258, 259):
        monkeypatch.setattr(packed, "BLOCK_ROWS", rows)
        torch.testing.assert_close(_logits(model), at_once, rtol=0, atol=0.02)


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the bytes of the largest tensor that any operation makes anew."""

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self._known:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("tables", ["tied", "untied"])
def test_no_pass_unpacks_a_table_whole_and_none_is_left_unpacked(
    checkpoint: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch, tables: str
) -> None:
    monkeypatch.setattr(packed, "BLOCK_ROWS", 32)
    model, whole = _load(checkpoint(tables).packed), _load(checkpoint(tables).unpacked)
    with torch.inference_mode(), _Sizes(model) as sizes:
        model(torch.tensor([PROMPT[:4]]), use_cache=False)
    smaller_table = whole.model.embed_tokens.weight
    assert 0 < sizes.largest < smaller_table.nbytes
    shapes = {tuple(tensor.shape) for tensor in [*model.parameters(), *model.buffers()]}
    assert {(259, 2 * GROUP), (259, 9 * GROUP)}.isdisjoint(shapes)
    assert model.model.embed_tokens_per_layer.packed.dtype is torch.int32
    assert model.model.embed_tokens_per_layer.packed.shape == (259, 9 * GROUP // 8)


@pytest.mark.parametrize("tables", ["bf16", "tied", "untied"])
def test_nothing_is_wrapped_and_nothing_is_left_to_unpack(checkpoint: Callable[[str], Checkpoint], tables: str) -> None:
    model = _load(checkpoint(tables).packed)
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == []
    assert [name for name, module in model.named_modules() if module._forward_pre_hooks] == []
    assert [name for name, _ in model.named_parameters() if "weight_" in name] == []
    assert model.dtype is torch.bfloat16


@pytest.mark.parametrize("tables", ["tied", "untied"])
def test_a_packed_checkpoint_compiles_to_one_graph(checkpoint: Callable[[str], Checkpoint], tables: str) -> None:
    model = _load(checkpoint(tables).packed)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    assert torch.equal(_logits(compiled), _logits(model))


def test_a_checkpoint_under_the_text_models_own_names_loads_too(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    folder = checkpoint("tied").packed
    state = load_file(folder / "model.safetensors")
    own = {key.replace("model.language_model.", "model."): value for key, value in state.items()}
    assert torch.equal(_logits(_load(_copied(folder, tmp_path / "own", own))), _logits(_load(folder)))


def test_plain_weights_under_the_multimodal_models_names_load_too(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    folder = checkpoint("bf16").unpacked
    state = _renamed(load_file(folder / "model.safetensors"))
    assert torch.equal(_logits(_load(_copied(folder, tmp_path / "named", state))), _logits(_load(folder)))


@pytest.mark.parametrize("kind", ["packed", "unpacked"])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model.layers.0.stray.weight": 1}, r"model\.layers\.0\.stray\.weight not in the model"),
        ({"norm.weight": 0}, r"model\.norm\.weight not in the checkpoint"),
        ({"norm.weight": 65}, r"model\.norm\.weight of another shape"),
    ],
)
def test_a_tensor_without_its_match_is_an_error_that_names_it(
    checkpoint: Callable[[str], Checkpoint],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    change: dict[str, int],
    complaint: str,
) -> None:
    folder: Path = getattr(checkpoint("tied"), kind)
    state = load_file(folder / "model.safetensors")
    for suffix, size in change.items():
        key = next((key for key in state if key.endswith(suffix) and "layer" not in key), suffix)
        state.pop(key, None)
        if size:
            state[key] = torch.ones(size, dtype=torch.bfloat16)
    transformers.utils.logging.add_handler(caplog.handler)
    with pytest.raises(EngineError, match=complaint):
        _load(_copied(folder, tmp_path / "changed", state))
    transformers.utils.logging.remove_handler(caplog.handler)
    assert caplog.text == ""  # no table of the same by transformers


def test_a_table_packed_otherwise_is_an_error_that_names_it(
    checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    folder = checkpoint("tied").packed
    state = load_file(folder / "model.safetensors")
    key = "model.language_model.embed_tokens_per_layer.weight_packed"
    state[key] = torch.cat([state[key], state[key]], dim=1)  # as wide as 8 bits make it
    with pytest.raises(EngineError, match=r"embed_tokens_per_layer\.packed of another shape"):
        _load(_copied(folder, tmp_path / "wide", state))


def test_a_checkpoint_packed_in_two_ways_is_refused(checkpoint: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    folder = checkpoint("bf16").packed
    quantization = json.loads((folder / "config.json").read_text())["quantization_config"]
    first = quantization["config_groups"]["group_0"]
    second = first | {"targets": ["re:.*down_proj$"], "weights": first["weights"] | {"num_bits": 8}}
    quantization["config_groups"]["group_1"] = second
    state = load_file(folder / "model.safetensors")
    with pytest.raises(EngineError, match="packs weights in 2 ways"):
        _load(_copied(folder, tmp_path / "two", state, quantization_config=quantization))


def test_a_packed_checkpoint_without_compressed_tensors_is_one_clear_sentence(
    checkpoint: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = checkpoint("bf16")
    monkeypatch.setitem(sys.modules, "compressed_tensors", None)  # what Python makes of a package that is not there
    with pytest.raises(EngineError, match=r"pip install 'recall\[w4a16\]'"):
        _load(folders.packed)
    _load(folders.unpacked)
