"""Reads what a GGUF file says of itself, or tells in one sentence why llama.cpp could not run it; loads no weights.

llama.cpp gives the same error for a missing, a cut and a junk file. gguf-py's reader makes objects of every entry of
the vocabulary, which takes seconds: here the entries are only stepped over. The layout is the GGUF specification's,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engines.errors import EngineError

INSTALL = "pip install 'recall[llama-cpp]'"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # that llama.cpp reads
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32
# More than any file has; a header that claims more is junk, and would take long to step over.
_MOST_KEYS, _MOST_TENSORS, _MOST_ENTRIES, _MOST_DIMENSIONS = 1 << 16, 1 << 20, 1 << 22, 4
_MOST_LAYERS = 1 << 10  # numbers of a list that are kept
# Architectures that llama.cpp has, and that do not write a text from left to right.
_NO_DECODERS = {
    *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"),
    *("gemma-embedding", "llama-embed", "clip", "wavtokenizer-dec"),
    *("t5", "t5encoder", "dream", "llada", "llada-moe", "rnd1"),
}


@dataclass(frozen=True)
class GGUFFile:
    """What a GGUF file says of itself; None where it says nothing.

    Attributes:
        path: where it is.
        architecture: llama.cpp's name of the model's family.
        file_type: the number format of most weights, `Q4_K_M`, `F32`, ...
        context_length: tokens that the model was trained for.
        sliding_window: positions that its sliding layers look back.
        vocabulary: tokens that it knows.
        shape: what it says under the architecture's name, such as `block_count`; lists of a number a layer as tuples.
        bos: the token that belongs in front of every text, and its mark; None: none does.
    """

    path: Path
    architecture: str
    file_type: str | None
    context_length: int | None
    sliding_window: int | None
    vocabulary: int | None
    shape: Mapping[str, Any] = field(default_factory=dict, compare=False)
    bos: tuple[int, str] | None = field(default=None, compare=False)


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file.

    Raises:
        EngineError: when it is missing, a folder, no GGUF, cut off, damaged, of a version or an architecture that
            llama.cpp cannot run; or when gguf-py, which knows the formats of weights, is not installed.
    """
    if find_spec("gguf") is None:
        raise EngineError("reading a GGUF file needs the package gguf, which is not installed: " + INSTALL)
    if path.is_dir():
        raise EngineError(
            f"--model {path} is a folder: --engine llama.cpp takes a GGUF file; make one of a checkpoint with "
            "`recall export-gguf`"
        )
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
            if start != _MAGIC:
                raise EngineError(f"--model {path} is no GGUF file (its first bytes are {start!r}): give one")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _read(path, _Header(content))
    except OSError as error:
        raise EngineError(f"--model {path}: cannot be read ({error.strerror}); give a GGUF file") from error
    except _CutOffError as error:
        raise EngineError(
            f"--model {path} is cut off: it has {path.stat().st_size:,} bytes and its header tells of more; copy or "
            "download it again"
        ) from error
    except _JunkError as error:
        raise EngineError(f"--model {path} is a damaged GGUF file: {error}; copy or download it again") from error


class _CutOffError(Exception):
    """The file ends before what its header tells of."""


class _JunkError(Exception):
    """The header says what no header can say."""


@dataclass(frozen=True)
class _List:
    """A long list of a header, of which only the length is kept, and where its first entry is."""

    length: int
    at: int


class _Header:
    """Steps through the header of a GGUF file."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.at = len(_MAGIC)

    def skip(self, count: int) -> int:
        """Step over `count` bytes; return where they begin."""
        begin = self.at
        self.at += count
        if self.at > len(self.content):
            raise _CutOffError
        return begin

    def number(self, form: str) -> Any:
        form = "<" + form
        return struct.unpack_from(form, self.content, self.skip(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        count: int = self.number("Q")
        if count > most:
            raise _JunkError(f"{count:,} {what}")
        return count

    def string(self) -> str:
        size: int = self.number("Q")
        begin = self.skip(size)
        try:
            return self.content[begin : self.at].decode()
        except UnicodeDecodeError:
            raise _JunkError("a name that is not UTF-8") from None

    def value(self) -> Any:
        """Return the value of a key."""
        kind: int = self.number("I")
        if kind == _STRING:
            # A chat template, for one, need not be UTF-8 for llama.cpp to run the model.
            size: int = self.number("Q")
            begin = self.skip(size)
            return self.content[begin : self.at].decode(errors="replace")
        return self._array() if kind == _ARRAY else self.number(_scalar(kind))

    def _array(self) -> _List | tuple[Any, ...]:
        kind: int = self.number("I")
        if kind != _STRING:
            form = _scalar(kind)
            count: int = self.number("Q")
            if count <= _MOST_LAYERS:
                return tuple(self.number(form) for _ in range(count))
            return _List(count, self.skip(count * struct.calcsize("<" + form)))
        count = self.count(_MOST_ENTRIES, "entries in one list")
        begin = self.at
        for _ in range(count):
            self.skip(self.number("Q"))
        return _List(count, begin)


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise _JunkError(f"a value of the unknown type {kind}")
    return _SCALARS[kind]


def _read(path: Path, header: _Header) -> GGUFFile:
    version: int = header.number("I")
    if version & 0xFFFF == 0:
        raise EngineError(
            f"--model {path} has its bytes in big-endian order: llama.cpp wants the other; convert it again"
        )
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise EngineError(
            f"--model {path} is a GGUF file of version {version}: llama.cpp reads {known}; convert it again"
        )
    tensors = header.count(_MOST_TENSORS, "tensors")
    keys = header.count(_MOST_KEYS, "keys")
    values = {header.string(): header.value() for _ in range(keys)}
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str):
        raise _JunkError("it names no architecture")
    if architecture in _NO_DECODERS:
        raise EngineError(
            f"--model {path} holds a {architecture}, which writes no text token by token: give a text model"
        )
    _check_tensors(header, tensors, values.get("general.alignment", _ALIGNMENT))
    tokens = values.get("tokenizer.ggml.tokens")
    return GGUFFile(
        path=path,
        architecture=architecture,
        file_type=_file_type(values.get("general.file_type")),
        context_length=_count(values.get(f"{architecture}.context_length")),
        sliding_window=_count(values.get(f"{architecture}.attention.sliding_window")),
        vocabulary=tokens.length if isinstance(tokens, _List) else None,
        shape={key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{architecture}.")},
        bos=_bos(header, values),
    )


def _bos(header: _Header, values: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the token in front of a text; a file that says nothing of it has one where its tokenizer is `llama`."""
    tokens, number = values.get("tokenizer.ggml.tokens"), values.get("tokenizer.ggml.bos_token_id")
    adds = values.get("tokenizer.ggml.add_bos_token", values.get("tokenizer.ggml.model") == "llama")
    if not (adds and isinstance(tokens, _List) and isinstance(number, int) and 0 <= number < tokens.length):
        return None
    header.at = tokens.at
    for _ in range(number):
        header.skip(header.number("Q"))
    return number, header.string()


def _check_tensors(header: _Header, tensors: int, alignment: Any) -> None:
    """Raise `_CutOffError` when the file ends before the data of its last tensor."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if not isinstance(alignment, int) or alignment <= 0:
        raise _JunkError(f"an alignment of {alignment}")
    sizes = {kind.value: GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType if kind in GGML_QUANT_SIZES}
    last = 0
    for _ in range(tensors):
        header.string()
        dimensions: int = header.number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise _JunkError(f"a tensor of {dimensions} dimensions")
        weights = 1
        for _ in range(dimensions):
            weights *= header.number("Q")
        kind: int = header.number("I")
        offset: int = header.number("Q")
        # A format that is newer than gguf-py: of such a tensor only its beginning is known.
        block, size = sizes.get(kind, (1, 0))
        last = max(last, offset + weights // block * size)
    begin = -(-header.at // alignment) * alignment
    if begin + last > len(header.content):
        raise _CutOffError


def _file_type(value: Any) -> str | None:
    from gguf import LlamaFileType

    if not isinstance(value, int):
        return None
    try:
        return LlamaFileType(value).name.removeprefix("ALL_").removeprefix("MOSTLY_")
    except ValueError:
        return f"file type {value}"  # newer than gguf-py


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
