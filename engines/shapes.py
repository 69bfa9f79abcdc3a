"""Published model shapes by name: the configuration of a text model without its weights."""

from typing import Any

import transformers

from engines.errors import EngineError

_GEMMA_4 = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "vocab_size_per_layer_input": 262_144,
    "head_dim": 256,
    "global_head_dim": 512,
    "final_logit_softcapping": 30.0,
}
_LARGE_GEMMA_4 = _GEMMA_4 | {
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "max_position_embeddings": 262_144,
}


def _pattern(sliding: int, repeats: int) -> list[str]:
    return [*["sliding_attention"] * sliding, "full_attention"] * repeats


# Gemma 4: the variants in transformers' own conversion script, models/gemma4/convert_gemma4_weights.py, with the
# defaults of `Gemma4TextConfig`; E2B also in the article. Gemma 3 270M: the metadata of its published GGUF.
SHAPES: dict[str, dict[str, Any]] = {
    "gemma-4-e2b": _GEMMA_4
    | {
        "hidden_size": 1536,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 6144,
        "use_double_wide_mlp": True,
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 20,
        "layer_types": _pattern(4, 7),
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
    },
    "gemma-4-e4b": _GEMMA_4
    | {
        "hidden_size": 2560,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 10_240,
        "num_hidden_layers": 42,
        "num_kv_shared_layers": 18,
        "layer_types": _pattern(5, 7),
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
    },
    "gemma-4-26b-a4b": _LARGE_GEMMA_4
    | {
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "num_hidden_layers": 30,
        "layer_types": _pattern(5, 5),
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
    },
    "gemma-4-31b": _LARGE_GEMMA_4
    | {
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "num_hidden_layers": 60,
        "layer_types": _pattern(5, 10),
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
    },
    "gemma-3-270m": {
        "model_type": "gemma3_text",
        "vocab_size": 262_144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "layer_types": _pattern(5, 3),
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 32_768,
    },
}


def shape_config(name: str) -> Any:
    """Return the transformers configuration of the published shape `name`.

    Raises:
        EngineError: for a name that is none of them.
    """
    if name not in SHAPES:
        raise EngineError(f"--shape {name!r} is unknown: give one of {', '.join(SHAPES)}")
    return transformers.AutoConfig.for_model(**SHAPES[name])
