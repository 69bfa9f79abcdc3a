"""What is wrong with a GGUF file is said in one sentence each, before llama.cpp is started; and no file is too bad."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from engines import EngineError
from engines.gguf_file import GGUFFile, read_gguf
from recall import demo

STRING, ARRAY = 8, 9


def _whole(path: Path, architecture: str = "llama") -> Path:
    """Write a GGUF file with a bit of everything, and no model."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(4096)
    writer.add_sliding_window(48)
    writer.add_token_list(["<s>", "</s>", "ü"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), dtype=np.float32))
    writer.add_tensor("output.weight", np.zeros((3, 34), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _header(*keys: bytes, version: int = 3, tensors: int = 0, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(keys) if count is None else count) + b"".join(keys)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _architecture(name: str) -> bytes:
    return _text("general.architecture") + struct.pack("<I", STRING) + _text(name)


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    path = _whole(tmp_path / "whole.gguf")
    assert read_gguf(path) == GGUFFile(path, "llama", "Q8_0", 4096, 48, 3)


def test_the_demo_file_says_what_it_is() -> None:
    path = demo.demo_gguf(print)
    assert read_gguf(path) == GGUFFile(path, "gemma3", "Q4_K_M", 32_768, 512, 262_144)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot be read \(No such file or directory\); give a GGUF file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(EngineError, match=r"is a folder: .* `recall export-gguf`"):
        read_gguf(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no GGUF file (its first bytes are b''): give one"),
        (b"PK\x03\x04 some other file", "is no GGUF file (its first bytes are b'PK\\x03\\x04'): give one"),
        (b"GGUF", "is cut off: it has 4 bytes and its header tells of more"),
        (_header(version=1), "is a GGUF file of version 1: llama.cpp reads 2 and 3"),
        (_header(version=0x03000000), "has its bytes in big-endian order"),
        (_header(), "is a damaged GGUF file: it names no architecture"),
        (_header(_architecture("clip")), "holds a clip, which writes no text token by token"),
        (_header(_architecture("bert")), "holds a bert, which writes no text token by token"),
        (_header(b"\x01" + bytes(7) + b"\xff"), "is a damaged GGUF file: a name that is not UTF-8"),
        (_header(_text("a") + struct.pack("<I", 99)), "is a damaged GGUF file: a value of the unknown type 99"),
        (_header(count=1 << 60), "is a damaged GGUF file: 1,152,921,504,606,846,976 keys"),
        (_header(tensors=1 << 60), "is a damaged GGUF file: 1,152,921,504,606,846,976 tensors"),
        (
            # Zeros enough for all those entries: each is a text of no length, and stepping over them takes an hour.
            _header(_text("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 60)) + bytes(1 << 20),
            "is a damaged GGUF file: 1,152,921,504,606,846,976 entries in one list",
        ),
        (_header(_architecture("llama"), tensors=1) + _text("x") + struct.pack("<I", 9), "a tensor of 9 dimensions"),
    ],
)
def test_each_kind_of_bad_file_has_its_own_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError) as raised:
        read_gguf(path)
    assert sentence in str(raised.value)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = _whole(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    padding = -(3 * 34) % 32  # after the last tensor: it is whole without
    for length in range(4, len(whole) - padding):
        path.write_bytes(whole[:length])
        with pytest.raises(EngineError, match=f"is cut off: it has {length:,} bytes"):
            read_gguf(path)


def test_a_damaged_header_never_gives_anything_but_a_sentence(tmp_path: Path) -> None:
    whole = _whole(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "damaged.gguf"
    source = random.Random(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(source.randint(1, 8)):
            damaged[source.randrange(4, len(damaged))] = source.randrange(256)
        path.write_bytes(damaged)
        try:
            read_gguf(path)
        except EngineError:
            refused += 1
    assert refused > 250


def test_a_newer_weight_format_is_named_by_its_number(tmp_path: Path) -> None:
    path = _whole(tmp_path / "newer.gguf")
    key = _text("general.file_type") + struct.pack("<I", 4)
    path.write_bytes(path.read_bytes().replace(key + struct.pack("<I", 7), key + struct.pack("<I", 777)))
    assert read_gguf(path).file_type == "file type 777"


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.gguf_file.find_spec", lambda _: None)
    with pytest.raises(EngineError, match=r"the package gguf, .* pip install 'recall\[llama-cpp\]'"):
        read_gguf(_whole(tmp_path / "whole.gguf"))
