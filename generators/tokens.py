"""A tokenizer as prompts need it: text to ids, one BOS, chat turns, and a fingerprint of the vocabulary.

The text of a prompt is complete: it holds the BOS mark and the turn markers, so every engine makes the same ids
from it by encoding it with no special tokens added.
"""

import hashlib
from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from sys import byteorder
from typing import Any

from generators.errors import GeneratorError
from generators.records import Format

# Turn markers of Gemma tokenizers that carry no chat template (base models): Gemma 4's, then Gemma 2's and 3's.
_GEMMA_TURNS = (("<|turn>", "<turn|>"), ("<start_of_turn>", "<end_of_turn>"))


class PromptTokenizer:
    """A tokenizer that transformers loads, from a local folder or a hub name."""

    def __init__(self, source: str | Path, name: str | None = None) -> None:
        """Load the tokenizer of `source`; rows call it `name`, or by `source`'s last part.

        Raises:
            GeneratorError: when `source` holds no tokenizer that transformers can load.
        """
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
        except Exception as error:  # of every kind: whatever transformers stumbles over in a damaged folder
            raise GeneratorError(
                f"tokenizer {str(source)!r} cannot be loaded: give `demo`, a local folder that holds "
                f"tokenizer.json, or a hub name ({_first_line(error)})"
            ) from error
        self.name = name or (Path(source).resolve().name if Path(source).exists() else str(source))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        # `verbose=False`: the text may be longer than the model that the tokenizer came with can read.
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def complete(self, message: str, form: Format) -> str:
        """Return the complete prompt text for a message: its BOS, and in chat format its turn markers.

        Raises:
            GeneratorError: when the tokenizer has no chat template and is not Gemma's.
        """
        text = message if form == "completion" else self._as_turn(message)
        if self._bos and not text.startswith(self._bos):
            text = self._bos + text
        return text

    def generation_prompt(self) -> str:
        """Return what ends a chat prompt so that the model answers; empty where the chat template has no such thing.

        Raises:
            GeneratorError: when the tokenizer has no chat template and is not Gemma's.
        """
        if not self._tokenizer.chat_template:
            return f"{self._turn_markers[0]}model\n"
        whole, turn = self._as_turn("a"), [{"role": "user", "content": "a"}]
        asked: str = self._tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=False)
        return whole.removeprefix(asked) if whole.startswith(asked) else ""

    def check_bos(self, ids: Sequence[int]) -> None:
        """Raise `GeneratorError` unless ids hold exactly one BOS, in front, where this tokenizer uses one."""
        if self._bos and (ids[0] != self._tokenizer.bos_token_id or ids.count(ids[0]) != 1):
            raise GeneratorError(
                f"tokenizer {self.name!r}: the prompt holds {ids.count(self._tokenizer.bos_token_id)} BOS tokens "
                "where one, in front, is needed: its chat template and its settings disagree"
            )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the vocabulary, every token with its id, in the order of the ids; the first 16 hex digits."""
        digest = hashlib.sha256()
        for token, number in sorted(self._tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0])):
            digest.update(f"{number}\t{token}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]

    @cached_property
    def _bos(self) -> str:
        """The BOS mark where this tokenizer puts one in front of a text by itself, else an empty string."""
        ids = self._tokenizer("a").input_ids
        mark: str | None = self._tokenizer.bos_token
        return mark if mark and ids and ids[0] == self._tokenizer.bos_token_id else ""

    def _as_turn(self, message: str) -> str:
        if self._tokenizer.chat_template:
            text: str = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
            )
            return text
        start, end = self._turn_markers
        return f"{start}user\n{message}{end}\n{start}model\n"

    @cached_property
    def _turn_markers(self) -> tuple[str, str]:
        vocabulary = self._tokenizer.get_vocab()
        for markers in _GEMMA_TURNS:
            if all(marker in vocabulary for marker in markers):
                return markers
        raise GeneratorError(
            f"tokenizer {self.name!r} has no chat template: use --format completion, or the tokenizer of the "
            "instruction-tuned model"
        )


def sha256_of_ids(ids: Sequence[int]) -> str:
    """Return the SHA-256, in hex, of token ids written as little-endian 32-bit integers."""
    words = array("I", ids)
    if byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words.tobytes()).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
