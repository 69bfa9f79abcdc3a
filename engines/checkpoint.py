"""Opens a checkpoint: every tensor in its place in the model and on its device, or an error that names it.

Weights packed by compressed-tensors are unpacked one after the other while they are read (transformers'
`dequantize`): plain layers, no wrapped forward, nothing left to unpack. Left packed instead, transformers 5.24 with
compressed-tensors 0.20 unpacks them all at the first pass and wraps every module's forward; compiled, that makes
more than 20 graphs, with `remove_dispatch` as without. The vocabulary tables of a text model stay packed
(`engines.packed`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn
from transformers.core_model_loading import WeightRenaming
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

from engines.errors import EngineError
from engines.packed import PackedEmbedding, PackedHead, PackedTable, TiedHead
from engines.protocol import EngineOptions

# A text model cut out of a multimodal one keeps the names that its tensors had there.
_TEXT_NAMES = {r"^model\.language_model\.": "model."}

_COMPRESSED = "compressed-tensors"
# Our way to read such a checkpoint, registered with transformers under a name of its own: what `compressed-tensors`
# means to the rest of the process stays as it is.
_METHOD = "compressed-tensors-packed-tables"
# What makes one way of packing differ from another, in a configuration's `config_groups`.
_SCHEME = ("num_bits", "type", "symmetric", "strategy", "group_size")
_PARTS = ("packed", "scale", "shape")

_NAMED = 8  # tensors that an error names of each kind before it counts the rest


def open_checkpoint(options: EngineOptions, dtype: torch.dtype, attention: str) -> Any:
    """Return the causal language model `options.model`, in evaluation mode, its weights on `options.device`.

    Only safetensors are read: what pickles hold is run, not only read. Code that a model brings along is run only with
    `options.trust_remote_code`.

    Args:
        options: names the model; its weights go to the device one tensor after the other.
        dtype: the type of the weights, and of what packed tables give.
        attention: the name of one of transformers' attention functions.

    Raises:
        EngineError: when tensors of the checkpoint and of the model do not match one to one, when the checkpoint is
            packed in more than one way, or when compressed-tensors is needed and missing.
        Exception: whatever else keeps transformers from loading it.
    """
    name, trust = options.model_name, options.trust_remote_code
    config: Any = transformers.AutoConfig.from_pretrained(str(options.model), trust_remote_code=trust)
    quantization = getattr(config, "quantization_config", None)
    if isinstance(quantization, Mapping) and quantization.get("quant_method") == _COMPRESSED:
        _check_readable(quantization, name)
        config.quantization_config = {**quantization, "quant_method": _METHOD}
    with _no_load_report():
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
            str(options.model),
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            device_map={"": options.device},
            use_safetensors=True,
            trust_remote_code=trust,
            key_mapping=_names(config),
            ignore_mismatched_sizes=True,  # refused below, by name
            output_loading_info=True,
        )
    _check_matched(report, name, type(loaded).__name__)
    return loaded


@register_quantization_config(_METHOD)
class _PackedTablesConfig(transformers.CompressedTensorsConfig):
    """compressed-tensors' configuration, for layers that are unpacked while they are read."""

    def __init__(self, quant_method: str = _METHOD, **kwargs: Any) -> None:
        super().__init__(**kwargs | {"dequantize": True})
        self.quant_method = quant_method


@register_quantizer(_METHOD)
class _PackedTablesQuantizer(CompressedTensorsHfQuantizer):
    """Unpacks the layers of a checkpoint while they are read, and puts packed modules in place of its tables."""

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Iterable[str], **_: Any) -> None:
        self._tables = _install_tables(model, checkpoint_files)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        # The tables' tensors get names of their own before transformers looks for `weight_packed` to unpack.
        renamings = [
            WeightRenaming(rf"^{re.escape(table)}\.weight_{part}$", f"{table}.{part}")
            for table in self._tables
            for part in _PARTS
        ]
        conversions: list[Any] = super().update_weight_conversions([*weight_conversions, *renamings], model)
        return conversions


@contextmanager
def _no_load_report() -> Iterator[None]:
    """Keep transformers from printing a table of the tensors that do not match: the error names them."""
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)


def _names(config: Any) -> dict[str, str]:
    """Return how a checkpoint's names become the names of the model of `config`: patterns and what replaces them."""
    return _TEXT_NAMES if config.get_text_config() is config else {}


def _install_tables(model: Any, files: Iterable[str]) -> list[str]:
    """Put packed modules, still empty, where the checkpoint has packed tables; return their names in the model."""
    if not (names := _names(model.config)):
        return []  # a multimodal model reads its embedding's weight itself
    stored = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (no mapping: it has nothing else to go through)
                stored[_renamed(key, names)] = (file, key)
    head = model.get_output_embeddings()
    tables: dict[str, PackedTable] = {}
    for name, module in list(model.named_modules()):
        if f"{name}.weight_packed" in stored and (isinstance(module, nn.Embedding) or module is head):
            tables[name] = _empty_table(module, *stored[f"{name}.weight_scale"])
            model.set_submodule(name, tables[name])
    # transformers ties weights by name; a packed table has none of that name.
    for target, source in list(model.all_tied_weights_keys.items()):
        tied, embedding = target.removesuffix(".weight"), source.removesuffix(".weight")
        if tied in tables or embedding in tables:
            del model.all_tied_weights_keys[target]
        if embedding in tables and tied not in tables:
            model.set_submodule(tied, TiedHead(tables[embedding]))
    return list(tables)


def _empty_table(module: nn.Embedding | nn.Linear, file: str, scale_key: str) -> PackedTable:
    """Return the packed module that takes the place of `module`, for the scales `[rows, groups]` of a file."""
    with safe_open(file, framework="pt") as tensors:
        scale = tensors.get_slice(scale_key)[:0]
    rows, width = module.weight.shape
    sizes = rows, width, scale.shape[-1], scale.dtype, module.weight.dtype
    if isinstance(module, nn.Embedding):
        return PackedEmbedding(*sizes, embed_scale=getattr(module, "scalar_embed_scale", 1.0))
    return PackedHead(*sizes)


def _renamed(key: str, names: Mapping[str, str]) -> str:
    for pattern, replacement in names.items():
        key = re.sub(pattern, replacement, key)
    return key


def _check_readable(quantization: Mapping[str, Any], name: str) -> None:
    if find_spec("compressed_tensors") is None:
        raise EngineError(
            f"--model {name!r}: its weights are packed by compressed-tensors, which is not installed; "
            "pip install 'recall[w4a16]'"
        )
    # transformers unpacks every layer by the scheme of the first group: with two, some would come out wrong.
    groups = quantization.get("config_groups") or {}
    weights = [group.get("weights") or {} for group in groups.values() if isinstance(group, Mapping)]
    schemes = {json.dumps([scheme.get(key) for key in _SCHEME]) for scheme in weights}
    if len(schemes) > 1:
        raise EngineError(
            f"--model {name!r}: its config.json packs weights in {len(schemes)} ways "
            f"({', '.join(_SCHEME)}: {'; '.join(sorted(schemes))}); only a checkpoint packed in one way is read"
        )


def _check_matched(report: Mapping[str, Any], name: str, kind: str) -> None:
    """Raise `EngineError` unless the tensors of a checkpoint and of its model, a `kind`, match one to one."""
    complaints = {
        "not in the checkpoint": report["missing_keys"],
        "not in the model": report["unexpected_keys"],
        "of another shape": {key for key, *_ in report["mismatched_keys"]},
    }
    found = [f"{_listed(keys)} {complaint}" for complaint, keys in complaints.items() if keys]
    if found:
        raise EngineError(
            f"--model {name!r}: its tensors do not match a {kind}: {'; '.join(found)}; "
            "give a checkpoint whose config.json belongs to its weights"
        )


def _listed(keys: Iterable[str]) -> str:
    named = sorted(keys)
    rest = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + rest
