"""What the tests share: the real demo model, small random models of several families, and a tokenizer of bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from generators import PromptTokenizer
from recall import demo

CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}<user>{{ message['content'] }}</user>{% endfor %}<model>"


def _byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    specials = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The converted demo model: Gemma 3 270M, real weights."""
    return demo.demo_folder(print)


@pytest.fixture(scope="session")
def gemma(demo_folder: Path) -> PromptTokenizer:
    """Gemma's tokenizer, of a base model: it has no chat template."""
    return PromptTokenizer(demo_folder, name="demo")


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one token a byte, a chat template, and a BOS that it does not add by itself."""
    folder = tmp_path_factory.mktemp("tokenizers") / "bytes"
    tokenizer = _byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a small random model of a family, with the tokenizer of bytes; made once a session."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]())
            # Random weights of the usual size give logits so close to each other that any rounding decides.
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim > 1:
                        parameter.mul_(4)
            made[family] = tmp_path_factory.mktemp("models") / family
            model.save_pretrained(made[family])
            _byte_tokenizer().save_pretrained(made[family])
        return made[family]

    return folder


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


CONFIGS = {"llama": _llama, "mistral": _mistral, "gemma3": _gemma3, "gemma4": _gemma4}
