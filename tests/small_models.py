"""Small configurations of every layout that the ring engine holds: 259 tokens, windows of 48, a few layers."""

from collections.abc import Callable

import transformers

_SIZES = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]


def _llama() -> transformers.PreTrainedConfig:
    return transformers.LlamaConfig(**_SIZES, num_hidden_layers=3)


def _mistral() -> transformers.PreTrainedConfig:
    return transformers.MistralConfig(**_SIZES, num_hidden_layers=3, sliding_window=48)


def _gemma3() -> transformers.PreTrainedConfig:
    return transformers.Gemma3TextConfig(
        **_SIZES,
        num_hidden_layers=6,
        head_dim=16,
        sliding_window=48,
        layer_types=_PATTERN * 2,
        query_pre_attn_scalar=16,
    )


def _gemma4() -> transformers.PreTrainedConfig:
    """E2B's layout in small: the last layers share keys and values, every layer has its own embedding."""
    return transformers.Gemma4TextConfig(
        **_SIZES | {"num_key_value_heads": 1},
        num_hidden_layers=9,
        num_kv_shared_layers=3,
        head_dim=16,
        global_head_dim=32,
        sliding_window=48,
        layer_types=_PATTERN * 3,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=259,
    )


def _gemma4_dense() -> transformers.PreTrainedConfig:
    """The large dense layout: full layers take their keys as values, no layer shares or has an embedding of its own."""
    return transformers.Gemma4TextConfig(
        **_SIZES,
        num_hidden_layers=6,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        sliding_window=48,
        layer_types=_PATTERN * 2,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=True,
        final_logit_softcapping=30.0,
    )


def _gemma4_experts() -> transformers.PreTrainedConfig:
    """The layout with a mixture of experts beside every dense MLP."""
    return transformers.Gemma4TextConfig(
        **_SIZES,
        num_hidden_layers=3,
        head_dim=16,
        global_head_dim=32,
        sliding_window=48,
        layer_types=_PATTERN,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=32,
    )


def _qwen2() -> transformers.PreTrainedConfig:
    return transformers.Qwen2Config(
        **_SIZES, num_hidden_layers=4, use_sliding_window=True, sliding_window=48, max_window_layers=2
    )


def _qwen3() -> transformers.PreTrainedConfig:
    return transformers.Qwen3Config(**_SIZES, num_hidden_layers=3, head_dim=16)


CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "gemma4-dense": _gemma4_dense,
    "gemma4-experts": _gemma4_experts,
}
