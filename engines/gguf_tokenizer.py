"""Writes a tokenizer of the `tokenizers` library into a GGUF file: llama.cpp then makes the same ids of a text.

Two kinds are known, each with what llama.cpp calls it: BPE over characters with `▁` for a blank, as SentencePiece
makes it (`llama`), and BPE over bytes (`gpt2`). Others are refused. What text before the merges is cut by is one of
llama.cpp's own rules, known by name; a tokenizer with a rule of its own is refused, too. Whether the ids really are
the same, every scored prompt is checked for.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from engines.errors import EngineError

_BLANK = "▁"
# How a text is cut before its merges, and what llama.cpp calls it. None: what `ByteLevel` does by itself.
_CUTS = {
    None: "gpt-2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",  # noqa: E501
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",  # noqa: E501
}


def write_tokenizer(writer: Any, tokenizer: Any, end_ids: Iterable[int], vocabulary: int, model: str) -> None:
    """Write a tokenizer with gguf-py's `writer`.

    Args:
        writer: a `GGUFWriter` before its first byte.
        tokenizer: transformers' one.
        end_ids: the tokens that end an answer.
        vocabulary: rows of the model's embedding; those that are no token of the tokenizer become unused ones.
        model: what an error calls the model.

    Raises:
        EngineError: when llama.cpp could not make the same ids.
    """
    parts = _parts(tokenizer, model)
    kind = "llama" if _is_sentencepiece(parts) else "gpt2"
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in parts["model"]["merges"]]
    tokens, types = _tokens(parts, vocabulary, model)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if kind == "llama":
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(_scores(tokens, parts["model"]["merges"]))
        writer.add_add_space_prefix(_adds_blank(parts))
    else:
        writer.add_tokenizer_pre(_cut(parts, model))
        # llama.cpp wants one at least; no text is cut into pieces that this one could join.
        writer.add_token_merges(merges or [f"{tokens[0]} {tokens[0]}"])
    writer.add_add_bos_token(tokenizer.encode("a")[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(False)
    for token, write in (
        (tokenizer.bos_token_id, writer.add_bos_token_id),
        (tokenizer.unk_token_id, writer.add_unk_token_id),
        (tokenizer.pad_token_id, writer.add_pad_token_id),
    ):
        if token is not None:
            write(token)
    _write_ends(writer, tokenizer.eos_token_id, end_ids, model)


def _parts(tokenizer: Any, model: str) -> Mapping[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: dict[str, Any] = json.loads(backend.to_str()) if backend is not None else {"model": {"type": "of its own"}}
    if parts["model"]["type"] != "BPE":
        raise EngineError(
            f"--model {model!r}: its tokenizer is {parts['model']['type']}, and only BPE is written as GGUF here"
        )
    return parts


def _steps(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer."""
    if part is None:
        return []
    return part.get("normalizers") or part.get("pretokenizers") or [part]


def _is_sentencepiece(parts: Mapping[str, Any]) -> bool:
    replaces = any(step["type"] == "Replace" and step["content"] == _BLANK for step in _steps(parts["normalizer"]))
    metaspace = any(step["type"] == "Metaspace" for step in _steps(parts["pre_tokenizer"]))
    return bool(parts["model"].get("byte_fallback")) and (replaces or metaspace)


def _adds_blank(parts: Mapping[str, Any]) -> bool:
    prepends = any(step["type"] == "Prepend" for step in _steps(parts["normalizer"]))
    schemes = [step.get("prepend_scheme", "always") for step in _steps(parts["pre_tokenizer"])
               if step["type"] == "Metaspace"]  # fmt: skip
    return prepends or any(scheme != "never" for scheme in schemes)


def _cut(parts: Mapping[str, Any], model: str) -> str:
    """Return llama.cpp's name for how a byte-level tokenizer cuts a text."""
    steps = _steps(parts["pre_tokenizer"])
    level = steps[-1] if steps and steps[-1]["type"] == "ByteLevel" else None
    patterns = [None] if level and level.get("use_regex", True) else []
    patterns += [step["pattern"].get("Regex") for step in steps[:-1] if step["type"] == "Split"]
    plain = level is not None and not level["add_prefix_space"] and len(patterns) == 1
    if not plain or patterns[0] not in _CUTS or len(steps) > 2:
        raise EngineError(
            f"--model {model!r}: its tokenizer cuts a text before its merges in a way that llama.cpp is not known to "
            "have"
        )
    return _CUTS[patterns[0]]


def _tokens(parts: Mapping[str, Any], vocabulary: int, model: str) -> tuple[list[str], list[int]]:
    """Return the text and the type of every token, `vocabulary` of each."""
    from gguf import TokenType

    found: dict[int, tuple[str, int]] = {
        number: (token, TokenType.NORMAL) for token, number in parts["model"]["vocab"].items()
    }
    if parts["model"].get("byte_fallback"):
        for byte in range(256):
            token = f"<0x{byte:02X}>"
            number = parts["model"]["vocab"].get(token)
            if number is not None:
                found[number] = (token, TokenType.BYTE)
    for added in parts["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        if added["content"] == parts["model"].get("unk_token"):
            kind = TokenType.UNKNOWN
        found[added["id"]] = (added["content"], kind)
    if max(found) >= vocabulary:
        raise EngineError(
            f"--model {model!r}: its tokenizer has tokens up to {max(found)}, and the model only {vocabulary}"
        )
    unused = {number: (f"<unused row {number}>", TokenType.UNUSED) for number in range(vocabulary)}
    every = unused | found
    return [every[number][0] for number in range(vocabulary)], [int(every[number][1]) for number in range(vocabulary)]


def _scores(tokens: list[str], merges: Iterable[Any]) -> list[float]:
    """Return a score for every token: llama.cpp merges what scores highest, `tokenizers` what comes first."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair if isinstance(pair, list) else pair.split(" ")), rank)
    return [-float(ranks.get(token, len(ranks))) for token in tokens]


def _write_ends(writer: Any, end: int | None, end_ids: Iterable[int], model: str) -> None:
    others = sorted(set(end_ids) - {end})
    ends = others if end is None else [end, *others]
    room = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    if len(ends) > len(room):
        raise EngineError(f"--model {model!r} has {len(ends)} end tokens, and a GGUF file has room for {len(room)}")
    for number, write in zip(ends, room, strict=False):
        write(number)
