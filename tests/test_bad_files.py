"""Whatever a JSONL file holds, reading it gives its rows, or one sentence that names file and line and can be shown."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import EngineError, EngineOptions, open_engine
from generators import GeneratorError, read_prompts
from recall import published
from recall.errors import RecallError
from recall.results import read_results
from tests.conftest import run_recall

Read = Callable[[Path], Sequence[Any]]
OURS = (GeneratorError, RecallError, EngineError)
PROMPTS = (published.folder("datasets") / "laptop.jsonl").read_text(encoding="utf-8")
RESULTS = (published.folder("results") / "tpu-v5e-ring.jsonl").read_text(encoding="utf-8")


def _recorded(path: Path) -> list[Any]:
    return [open_engine("recorded", EngineOptions(path, "recorded"))]


READERS: dict[str, tuple[Read, str]] = {
    "prompts": (read_prompts, PROMPTS),
    "results": (read_results, RESULTS),
    "recorded": (_recorded, RESULTS),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> tuple[Read, list[dict[str, Any]]]:
    read, text = READERS[request.param]
    return read, [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def _sentence(read: Read, path: Path) -> str:
    with pytest.raises(OURS) as refused:
        read(path)
    sentence = str(refused.value)
    assert str(path) in sentence
    assert sentence.isprintable()
    assert len(sentence) < len(str(path)) + 800
    return sentence


def _lines(rows: Sequence[object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(
    reader: tuple[Read, list[dict[str, Any]]], file: Path
) -> None:
    read, rows = reader
    file.write_bytes(_lines(rows))
    wanted = read(file)
    file.write_bytes(b"\xef\xbb\xbf" + _lines(rows).replace(b"\n", b"\r\n") + b"\r\n")
    if read is _recorded:
        assert read(file)[0].info == wanted[0].info
    else:
        assert read(file) == wanted


def test_a_line_that_is_no_row_is_named_by_its_number(reader: tuple[Read, list[dict[str, Any]]], file: Path) -> None:
    read, rows = reader
    good = _lines(rows[:1]) + b"\n"  # a blank line counts, too
    whole = json.dumps(rows[1]).encode()
    bad = {
        "cut": whole[:-20],
        "two rows": whole + whole,
        "a list": b"[]",
        "a number": b"7",
        "a string": b'"row"',
        "null": b"null",
        "words": b"Traceback (most recent call last):",
        "a NUL": whole[:30] + b"\0" + whole[30:],
        "NULs": b"\0" * 4096,
        "no UTF-8": whole.replace(b'"', b'"\xe9', 1),
        "deep": b"[" * 100_000 + b"]" * 100_000,
        "deep objects": b'{"a":' * 100_000,
        "half a surrogate pair": whole.replace(b': "', b': "\\ud800', 1),
        "an empty object": b"{}",
    }
    for content in bad.values():
        file.write_bytes(good + content)
        assert f"{file}, line 3: " in _sentence(read, file)


def test_a_field_of_another_kind_is_named(reader: tuple[Read, list[dict[str, Any]]], file: Path) -> None:
    read, rows = reader
    name = "id" if read is read_prompts else "prompt_id"
    for field in (name, "prompt_tokens"):
        values: list[Any] = [[], {}, None, True, [["x"]], "x" if field != name else 1]
        for value in values:
            if value is None and read is _recorded and field != name:
                continue  # a published run may tell no size
            file.write_bytes(_lines([rows[0] | {field: value}]))
            assert f"{file}, line 1: not a " in _sentence(read, file)
            assert field in _sentence(read, file)


def test_a_name_that_came_before_is_refused(reader: tuple[Read, list[dict[str, Any]]], file: Path) -> None:
    read, rows = reader
    file.write_bytes(_lines([*rows, rows[0]]))
    assert f"{file}, line {len(rows) + 1}: " in _sentence(read, file)
    assert "came before" in _sentence(read, file)


@pytest.mark.parametrize("content", [b"\xff\xfe" + "{}".encode("utf-16-le"), b"\xe9", "{}\n".encode("utf-16")])
def test_text_that_is_not_utf_8_is_refused(
    reader: tuple[Read, list[dict[str, Any]]], file: Path, content: bytes
) -> None:
    file.write_bytes(content)
    assert f"{file}, line 1: " in _sentence(reader[0], file)


def test_what_is_no_file_that_can_be_read_is_refused(
    reader: tuple[Read, list[dict[str, Any]]], file: Path, tmp_path: Path
) -> None:
    read, rows = reader
    assert "(Is a directory)" in _sentence(read, tmp_path)
    assert "(No such file or directory)" in _sentence(read, file)
    assert "(Not a directory)" in _sentence(read, Path(__file__) / "rows.jsonl")
    assert "(File name too long)" in _sentence(read, tmp_path / ("x" * 300))
    file.symlink_to(file)
    assert "symbolic links" in _sentence(read, file)
    if os.geteuid() != 0:  # root reads everything
        file.unlink()
        file.write_bytes(_lines(rows))
        file.chmod(0)
        assert "(Permission denied)" in _sentence(read, file)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-1", "1.5"])
@pytest.mark.parametrize("field", ["prompt_tokens", "depth", "read_s"])
def test_a_number_that_cannot_be_is_refused(file: Path, number: str, field: str) -> None:
    for read, text in READERS.values():
        row = json.loads(text.splitlines()[0])
        if field not in row or (read is _recorded and field != "prompt_tokens"):
            continue
        if (number == "1.5" and field == "read_s") or (number == "-1" and read is not read_prompts):
            continue  # these can be: of another run a row says what it says
        file.write_text(json.dumps(row | {field: "HERE"}).replace('"HERE"', number), encoding="utf-8")
        assert f"{file}, line 1: " in _sentence(read, file)


@pytest.mark.parametrize("field", ["records", "record", "first_draw"])
def test_a_prompt_of_more_records_than_can_be_is_refused_at_once(file: Path, field: str) -> None:
    row = json.loads(PROMPTS.splitlines()[0])
    file.write_bytes(_lines([row | {"records": 10**7, field: 10**30}]))
    assert field in _sentence(read_prompts, file)
    file.write_bytes(_lines([row | {"records": 10**18, "record": 10**18}]))  # its code would be drawn for years
    assert "records: Input should be less than" in _sentence(read_prompts, file)


def test_what_a_file_holds_never_moves_a_cursor(reader: tuple[Read, list[dict[str, Any]]], file: Path) -> None:
    read, rows = reader
    name = "id" if read is read_prompts else "prompt_id"
    evil = "\x1b[2J\x1b]0;title\x07\r\n\u2028\u202e" + "x" * 10_000_000
    bad: list[dict[str, Any]] = [{evil: 1}, {name: evil}, {"template": {"name": evil, "version": 1}}, {"status": evil}]
    bad += [{"versions": {evil: 1}}, {"settings": {evil: {}}}, {"sha256": evil}, {"outcome": evil}]
    refused = 0
    for change in bad:
        file.write_bytes(_lines([rows[0] | change, rows[0] | change]))
        _sentence(read, file)  # at least for the name that came before
        refused += 1
        ended = run_recall("score", file, "--engine", "oracle", "-o", file.with_name("new.jsonl"))
        assert (ended.code, ended.out) == (2, "")
        (line,) = ended.err.splitlines()
        assert line.isprintable()
        assert len(line) < 2200
    assert refused == len(bad)


def test_a_reply_may_hold_any_character(file: Path) -> None:
    row = json.loads(RESULTS.splitlines()[0])
    for reply in ("610395\u2028\u2029\x85\x0b\x0c\x1c", "\x1b[31m610395", "\ufeff610395", "x" * 10_000_000):
        raw = json.dumps(row | {"reply": reply}, ensure_ascii=False)
        file.write_text(raw, encoding="utf-8", newline="")
        assert [read.reply for read in read_results(file)] == [reply]
        assert len(_recorded(file)) == 1


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 100_000),
    st.sampled_from([2**63, -(2**63), 10**40]),
    st.floats(),
    st.text(st.characters(exclude_categories=[]), max_size=12),
)
values = st.recursive(
    scalars, lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.text(), deeper), max_leaves=5
)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> bytes:
    """A valid file with some changes: fields, lines, bytes."""
    lines: list[Any] = [json.loads(line) for line in text.splitlines()]
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.sampled_from(lines))
        row[draw(st.sampled_from([*row, "", "more"]))] = draw(values)
    if draw(st.booleans()):
        lines = draw(st.lists(st.sampled_from(lines), max_size=6))
    content = bytearray(_lines(lines))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(content[: draw(st.sampled_from([None, None, len(content) // 2]))])


@pytest.mark.parametrize("name", READERS)
def test_any_change_to_a_file_gives_rows_or_a_sentence(name: str, file: Path) -> None:
    read, text = READERS[name]
    ended = {"rows": 0, "sentence": 0}

    @settings(max_examples=200)
    @given(content=mutated(text))
    def read_it(content: bytes) -> None:
        file.write_bytes(content)
        sentence = None
        try:
            rows = read(file)
        except OURS as error:
            sentence = str(error)
        if sentence is None:
            ended["rows"] += 1
            assert all(row.model_dump_json() for row in rows if hasattr(row, "model_dump_json"))
        else:
            ended["sentence"] += 1
            assert str(file) in sentence
            assert sentence.isprintable()

    read_it()
    assert min(ended.values()) > 10, ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("answer", "\x1b[2J"),
        ("answer", "61039"[:4]),
        ("answer", "610395 319550"),
        ("codes", ["\x1b[2J"]),
        ("code", "six"),
        ("model", "a\nb"),
        ("engine", ""),
        ("found", False),
        ("outcome", "no-code"),
    ],
)
def test_a_row_that_contradicts_itself_or_hides_what_a_table_prints_is_refused(
    file: Path, field: str, value: object
) -> None:
    row = json.loads(RESULTS.splitlines()[0])
    assert row["found"]
    assert row["outcome"] == "found"
    file.write_bytes(_lines([row | {field: value}]))
    assert f"{file}, line 1: not a result row (" in _sentence(read_results, file)
