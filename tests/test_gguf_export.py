"""A checkpoint written as GGUF is computed by llama.cpp as transformers computes it, or is refused by name."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engines import EngineError, EngineOptions, LlamaCppOptions, Request
from engines.gguf_export import export_gguf
from engines.hf import HfEngine
from engines.llama_cpp import LlamaCppEngine
from generators import PromptTokenizer, make_prompts, seeded_specs
from tests.conftest import byte_tokenizer, run_recall
from tests.small_models import CONFIGS

# Around the window of 48 of the small Gemma, and more than one batch of 512 tokens.
LENGTHS = [1, 30, 47, 48, 49, 130, 700]
EXACT = LlamaCppOptions(kv_type="f32", flash_attention=False)

Change = Callable[[Any], None]


def _unchanged(config: Any) -> None:
    pass


def _without_window(config: Any) -> None:
    config.sliding_window = None
    if config.model_type == "qwen2":
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        config.vocab_size = 272  # transformers adds a token to any tokenizer of a Qwen 2


def _llama3(config: Any) -> None:
    config.rope_parameters = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def _linear(config: Any) -> None:
    config.rope_parameters = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


def _biased(config: Any) -> None:
    config.attention_bias = True
    config.tie_word_embeddings = True
    config.head_dim = 16


def _linear_full_layers(config: Any) -> None:
    config.rope_parameters = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    config.tie_word_embeddings = False


SAME: dict[str, tuple[str, Change]] = {
    "llama": ("llama", _unchanged),
    "llama, long-context rope": ("llama", _llama3),
    "llama, linear rope": ("llama", _linear),
    "llama, biases and tied tables": ("llama", _biased),
    "mistral": ("mistral", _without_window),
    "qwen2": ("qwen2", _without_window),
    "qwen3": ("qwen3", _unchanged),
    "gemma3": ("gemma3", _unchanged),
    "gemma3, linear rope and own output table": ("gemma3", _linear_full_layers),
}


def _config(family: str, change: Change) -> Any:
    config = CONFIGS[family]()
    change(config)
    return config


def _set(**values: object) -> Change:
    def change(config: Any) -> None:
        for name, value in values.items():
            setattr(config, name, value)

    return change


def _save(config: Any, folder: Path) -> Path:
    """Save a random model, its norms and biases random too, with the tokenizer of bytes; return its folder."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
            else:
                parameter.add_(torch.randn_like(parameter) / 4)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@contextmanager
def _llama_cpp(folder: Path, options: LlamaCppOptions = EXACT) -> Iterator[LlamaCppEngine]:
    """Write a checkpoint as GGUF beside its folder and open llama.cpp on it."""
    file = folder.with_suffix(".gguf")
    export_gguf(EngineOptions(folder, folder.name), file, lambda _: None)
    engine = LlamaCppEngine(EngineOptions(file, folder.name, threads=1, llama_cpp=options))
    try:
        yield engine
    finally:
        engine.close()


def _ids(count: int) -> list[int]:
    source = torch.Generator().manual_seed(count)
    return [0, *torch.randint(3, 259, (count - 1,), generator=source).tolist()]


def _logprobs(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    logprobs: NDArray[np.float32] = torch.from_numpy(logits).log_softmax(-1).numpy()
    return logprobs


@pytest.mark.parametrize("case", SAME)
def test_a_small_model_gives_the_same_answers_and_logits(case: str, tmp_path: Path) -> None:
    folder = _save(_config(*SAME[case]), tmp_path / "model")
    hf = HfEngine(EngineOptions(folder, "hf", threads=1))
    with _llama_cpp(folder) as llama_cpp:
        for length in LENGTHS:
            request = Request(f"of {length}", _ids(length), max_new=24, context=1024)
            mine, other = hf.complete(request, lambda _: None), llama_cpp.complete(request, lambda _: None)
            assert mine.ids is not None
            assert mine.ids == other.ids
            assert other.tokens_read == length
        ids = _ids(130)
        last = 3
        mine_last, other_last = hf.logits(ids, last, 1024), llama_cpp.logits(ids, last, 1024)
        np.testing.assert_allclose(_logprobs(mine_last), _logprobs(other_last), atol=2e-2)


@pytest.mark.parametrize(
    ("family", "change", "sentence"),
    [
        ("gemma4", _unchanged, "is a Gemma4ForCausalLM, which cannot be written as GGUF here: only Gemma3ForCausalLM,"),
        ("mistral", _unchanged, "it has no sliding window, and this model one of 48"),
        ("qwen2", _unchanged, "it has no sliding window, and this model one of 48"),
        ("llama", _set(hidden_act="gelu"), "it has the activation silu, not gelu"),
        (
            "qwen3",
            _set(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
            "rotary positions scaled by default or linear, not by yarn",
        ),
        ("gemma3", _set(query_pre_attn_scalar=32), "an attention scale of 1 / sqrt(16), not of 1 / sqrt(32)"),
        ("gemma3", _set(final_logit_softcapping=30.0), "it has no softcapping"),
        ("gemma3", _set(use_bidirectional_attention=True), "it has attention to earlier tokens only"),
        (
            "gemma3",
            _set(layer_types=["sliding_attention", "full_attention", "full_attention"] * 2),
            "sliding layers in a fixed rhythm only",
        ),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused_before_weights_are_read(
    family: str, change: Change, sentence: str, tmp_path: Path
) -> None:
    config = _config(family, change)
    config.architectures = [type(transformers.AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(tmp_path / "model")  # no weights are there at all
    with pytest.raises(EngineError, match=re.escape(sentence)):
        export_gguf(EngineOptions(tmp_path / "model", "model"), tmp_path / "model.gguf", lambda _: None)
    assert not list(tmp_path.glob("*gguf*"))


def _record_prompts(folder: Path) -> list[str]:
    counter = PromptTokenizer(folder, name="made here")
    specs = seeded_specs("completion", seed=1, budgets=[700, 2000], contexts=[], depths=[0.5], count=2)
    return [prompt.text or "" for prompt in make_prompts(specs, counter, "completion")]


def _byte_level(pattern: str | None) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer with merges over digits, letters and blanks; it cuts a text by `pattern` first."""
    merges = [*((left, right) for left in "02468" for right in "0123456789")]
    merges += [("Ġ", "r"), ("Ġr", "e"), ("c", "o"), ("r", "d"), ("co", "rd"), ("Ġre", "cord"), ("i", "s"), ("Ġ", "is")]
    tokenizer = byte_tokenizer(merges, bos=True)
    if pattern is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return tokenizer


def _sentencepiece(*, prefix: bool) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer as SentencePiece makes them, with pieces for the bytes it has no characters for."""
    words = ["▁r", "▁re", "co", "rd", "cord", "▁record", "is", "▁is", "12", "34", "123"]
    letters = [*"▁abcdefghijklmnopqrstuvwxyzT0123456789.:?\n"]
    merges = [("▁", "r"), ("▁r", "e"), ("c", "o"), ("r", "d"), ("co", "rd"), ("▁re", "cord"), ("i", "s"), ("▁", "is")]
    merges += [("1", "2"), ("3", "4"), ("12", "3")]
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    blank = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blank]) if prefix else blank
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENIZERS: dict[str, Callable[[], transformers.PreTrainedTokenizerFast]] = {
    "bytes": lambda: _byte_level(None),
    "bytes, cut as Llama 3 does": lambda: _byte_level(GPT4 % "{1,3}"),
    "bytes, cut as Qwen does": lambda: _byte_level(GPT4 % ""),
    "pieces": lambda: _sentencepiece(prefix=False),
    "pieces with a blank before the text": lambda: _sentencepiece(prefix=True),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_written_tokenizer_makes_the_same_ids_of_record_prompts(kind: str, tmp_path: Path) -> None:
    config = _config("llama", _set(vocab_size=512))
    folder = _save(config, tmp_path / "model")
    tokenizer = TOKENIZERS[kind]()
    tokenizer.save_pretrained(folder)
    texts = [*_record_prompts(folder), "The record is 123. ü → ½?"]
    with _llama_cpp(folder) as llama_cpp:
        for text in texts:
            assert llama_cpp.encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_a_tokenizer_that_llama_cpp_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = _save(_config("llama", _set(vocab_size=512)), tmp_path / "model")
    cases: Sequence[tuple[Any, str]] = [
        (_byte_level(r"\p{L}+|\s+"), "cuts a text before its merges in a way that llama.cpp is not known to have"),
        (_word_level(), "its tokenizer is WordLevel, and only BPE is written"),
        (byte_tokenizer([(left, right) for left in "abcdefghijklmnop" for right in "abcdefghijklmnopq"]), "up to 530"),
    ]
    for tokenizer, sentence in cases:
        tokenizer.save_pretrained(folder)
        with pytest.raises(EngineError, match=re.escape(sentence)):
            export_gguf(EngineOptions(folder, "model"), tmp_path / "model.gguf", lambda _: None)
    assert not list(tmp_path.glob("*gguf*"))


def _word_level() -> transformers.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="<s>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<s>")


def test_the_command_writes_once_and_says_what_it_wrote(small_model: Callable[[str], Path], tmp_path: Path) -> None:
    output = tmp_path / "small.gguf"
    ended = run_recall("export-gguf", "--model", small_model("llama"), "-o", output)
    assert ended.code == 0, ended.err
    assert ended.err.splitlines()[-1] == f"{output}: {output.stat().st_size:,} bytes"
    again = run_recall("export-gguf", "--model", small_model("llama"), "-o", output)
    assert (again.code, again.err) == (2, f"recall: {output} is there already: remove it, or give another -o\n")
    lost = run_recall("export-gguf", "--model", small_model("llama"), "-o", tmp_path / "none" / "small.gguf")
    assert (lost.code, "its folder is not there" in lost.err) == (2, True)


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.gguf_export.find_spec", lambda _: None)
    with pytest.raises(EngineError, match=r"the package gguf, .* pip install 'recall\[llama-cpp\]'"):
        export_gguf(EngineOptions(tmp_path, "model"), tmp_path / "model.gguf", lambda _: None)
