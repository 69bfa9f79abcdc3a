"""Writes a checkpoint that transformers loads as a GGUF file in F32: the very weights, in llama.cpp's own layout.

So `ring` or `hf` and llama.cpp can be laid side by side on the same numbers. What llama.cpp has no place for is
refused by name, most of it before any weights are read: a file that means something else is worse than none. Names,
layouts and keys are those of the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and
of gguf-py.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.errors import EngineError
from engines.gguf_file import INSTALL
from engines.gguf_tokenizer import write_tokenizer
from engines.loading import LoadedModel, load_config
from engines.protocol import EngineOptions

_SLIDING, _FULL = "sliding_attention", "full_attention"
# llama.cpp gives a Gemma 3 of so many layers, the one with 27 billion weights, an attention scale of its own.
_LAYERS_OF_27B = 62


@dataclass(frozen=True)
class _Family:
    """How llama.cpp computes the models of one of transformers' classes.

    Attributes:
        architecture: its name there.
        activation: the only one that it has for them.
        neighbours: whether it turns the dimensions 2i and 2i + 1 of a head together, where transformers turns i and
            i + D / 2: rows of queries and keys then lie in another order.
        norm_offset: what is added to a norm's weights, which transformers adds while it computes.
        windows: whether it knows sliding layers.
        ropes: the ways to scale rotary positions that it can be told.
    """

    architecture: str
    activation: str = "silu"
    neighbours: bool = False
    norm_offset: float = 0.0
    windows: bool = False
    ropes: tuple[str, ...] = ("default", "linear")


_LLAMA = _Family("llama", neighbours=True, ropes=("default", "linear", "llama3"))
_FAMILIES = {
    "Gemma3ForCausalLM": _Family("gemma3", "gelu_pytorch_tanh", norm_offset=1.0, windows=True),
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _Family("qwen2"),
    "Qwen3ForCausalLM": _Family("qwen3"),
}


def export_gguf(options: EngineOptions, output: Path, say: Callable[[str], None]) -> None:
    """Write the checkpoint `options.model` to `output`; `say` is told what is done.

    The file is written beside its place and renamed: one that was interrupted is never taken for a finished one.

    Raises:
        EngineError: when gguf-py is missing, the model cannot be loaded, or llama.cpp cannot compute it as it is.
    """
    if find_spec("gguf") is None:
        raise EngineError("writing a GGUF file needs the package gguf, which is not installed: " + INSTALL)
    import gguf

    config = load_config(options)
    family = _family(config, options.model_name)
    say(f"loading {options.model_name}")
    loaded = LoadedModel(options)
    tensors = dict(_tensors(loaded.model, family, options.model_name))
    with tempfile.TemporaryDirectory(prefix="gguf-part-", dir=output.absolute().parent) as part:
        file = Path(part) / output.name
        writer = gguf.GGUFWriter(file, family.architecture)
        writer.add_name(options.model_name)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        _write_shape(writer, config, family)
        write_tokenizer(writer, loaded.tokenizer, loaded.end_ids, config.vocab_size, options.model_name)
        for name, (tensor, _) in tensors.items():
            writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), 4 * tensor.numel())
        say(f"writing {len(tensors)} tensors")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor, layout in tensors.values():
            writer.write_tensor_data(np.ascontiguousarray(layout(tensor.float().cpu().numpy())))
        writer.close()
        file.replace(output)


def _family(config: Any, name: str) -> _Family:
    """Return the family of a configuration; raise `EngineError` for what llama.cpp cannot compute as it is."""
    kind = (config.architectures or [config.model_type])[0]
    if kind not in _FAMILIES:
        raise EngineError(
            f"--model {name!r} is a {kind}, which cannot be written as GGUF here: only {', '.join(_FAMILIES)} can"
        )
    family = _FAMILIES[kind]
    if reasons := list(_reasons_against(config, family)):
        raise EngineError(f"--model {name!r}: llama.cpp computes a {kind} in another way: it has {'; '.join(reasons)}")
    return family


def _reasons_against(config: Any, family: _Family) -> Iterator[str]:
    """Yield what llama.cpp would silently compute otherwise."""
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation != family.activation:
        yield f"the activation {family.activation}, not {activation}"
    kinds = _layer_kinds(config)
    if _SLIDING in kinds and config.sliding_window < config.max_position_embeddings and not family.windows:
        yield f"no sliding window, and this model one of {config.sliding_window}"
    if family.windows and kinds != _periodic(_period(kinds), len(kinds)):
        yield "sliding layers in a fixed rhythm only, the last of each round a full one"
    for kind in dict.fromkeys(kinds):
        rope = _rope(config, kind)
        known = ("default",) if family.windows and kind == _SLIDING else family.ropes
        if rope["rope_type"] not in known:
            yield f"rotary positions scaled by {' or '.join(known)}, not by {rope['rope_type']}"
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            yield "rotary positions in all dimensions of a head, not in a part of them"
    if getattr(config, "final_logit_softcapping", None) or getattr(config, "attn_logit_softcapping", None):
        yield "no softcapping"
    if getattr(config, "use_bidirectional_attention", False):
        yield "attention to earlier tokens only"
    if family.architecture == "gemma3":
        of_27b = config.num_hidden_layers == _LAYERS_OF_27B
        scale = config.hidden_size // config.num_attention_heads if of_27b else config.head_dim
        if config.query_pre_attn_scalar != scale:
            yield f"an attention scale of 1 / sqrt({scale}), not of 1 / sqrt({config.query_pre_attn_scalar})"


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = [_SLIDING if getattr(config, "sliding_window", None) else _FULL] * config.num_hidden_layers
    return list(kinds)


def _period(kinds: list[str]) -> int:
    """Return after how many layers a full one comes, itself included."""
    return kinds.index(_FULL) + 1 if _FULL in kinds else len(kinds) + 1


def _periodic(period: int, layers: int) -> list[str]:
    return [_SLIDING if layer % period < period - 1 else _FULL for layer in range(layers)]


def _rope(config: Any, kind: str) -> Mapping[str, Any]:
    """Return how the layers of a kind turn their heads."""
    parameters: Mapping[str, Any] = config.rope_parameters
    rope: Mapping[str, Any] = parameters.get(kind, parameters)
    return rope


def _head_size(config: Any) -> int:
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return size


def _write_shape(writer: Any, config: Any, family: _Family) -> None:
    """Write the keys that say how the weights are put to use."""
    import gguf

    head_size = _head_size(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_size)
    rope = _rope(config, _FULL)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if family.windows:
        kinds = _layer_kinds(config)
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(_period(kinds))
        writer.add_rope_freq_base_swa(_rope(config, _SLIDING)["rope_theta"])


Layout = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def _tensors(model: Any, family: _Family, name: str) -> Iterator[tuple[str, tuple[Tensor, Layout]]]:
    """Yield each tensor under its name in a GGUF file, with what brings it into the layout that llama.cpp reads."""
    import gguf

    config = model.config
    architecture = {text: arch for arch, text in gguf.MODEL_ARCH_NAMES.items()}[family.architecture]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp takes the embedding where there is no output table
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise EngineError(f"--model {name!r}: a GGUF file of a {family.architecture} has no place for {key}")
        yield target, (tensor, _layout(key, config, family))
    if _rope(config, _FULL)["rope_type"] == "llama3":
        yield "rope_freqs.weight", (_frequency_factors(model, config), lambda values: values)


def _layout(key: str, config: Any, family: _Family) -> Layout:
    if key.endswith("norm.weight"):
        return lambda values: values + np.float32(family.norm_offset)
    if family.neighbours and ".q_proj." in key:
        return lambda values: _neighbours(values, config.num_attention_heads)
    if family.neighbours and ".k_proj." in key:
        return lambda values: _neighbours(values, config.num_key_value_heads)
    return lambda values: values


def _neighbours(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Bring rows i and i + D / 2 of every head together; `[H * D, ...]` in and out."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _frequency_factors(model: Any, config: Any) -> Tensor:
    """Return what the frequencies of plain rotary positions are divided by, `[D / 2]`."""
    size = _head_size(config)
    plain: Tensor = _rope(config, _FULL)["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    used: Tensor = model.model.rotary_emb.inv_freq
    return plain / used.double().cpu()
