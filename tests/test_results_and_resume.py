"""A results file holds each row once, whole, as soon as it is done; a stopped run goes on, a changed one is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import EngineOptions, open_engine
from generators import Prompt, read_prompts
from recall import published
from recall.errors import RecallError
from recall.recording import recording, set_aside_torn_line
from recall.results import ResultRow, read_results
from recall.scoring import Run, score
from tests.conftest import Ended, run_recall

TIMES = {"read_s", "read_tok_s", "decode_tok_s"}
PROMPTS = 20


@pytest.fixture(scope="module")
def model(small_model: Callable[[str], Path]) -> Path:
    return small_model("gemma3")


@pytest.fixture(scope="module")
def prompt_set(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts long enough that a run of the small model can be stopped between two of them."""
    path = tmp_path_factory.mktemp("sets") / "set.jsonl"
    arguments = ["--budget", 1024, "--count", PROMPTS, "--format", "completion", "--tokenizer", model, "-o", path]
    assert run_recall("generate", *arguments).code == 0
    return path


@pytest.fixture(scope="module")
def undisturbed(prompt_set: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "ring.jsonl"
    assert run_recall(*_ring(prompt_set, model, path)).code == 0
    return path


def _ring(prompt_set: Path, model: Path, output: Path) -> list[object]:
    return ["score", prompt_set, "--engine", "ring", "--model", model, "--max-new", 8, "--threads", 1, "-o", output]


def _oracle(prompt_set: Path, output: Path, **options: object) -> Ended:
    arguments: dict[str, object] = {"engine": "oracle", "model": "", "output": output} | options
    given = [part for name, value in arguments.items() for part in (f"--{name.replace('_', '-')}", value)]
    return run_recall("score", prompt_set, *given)


def _untimed(path: Path) -> list[dict[str, Any]]:
    return [row.model_dump(exclude=TIMES) for row in read_results(path)]


def test_a_killed_run_goes_on_and_ends_with_the_rows_of_an_undisturbed_one(
    prompt_set: Path, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "ring.jsonl"
    command = [sys.executable, "-m", "recall", *map(str, _ring(prompt_set, model, output))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None and (not output.exists() or output.read_bytes().count(b"\n") < 3):
            time.sleep(0.002)
        os.kill(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    before = output.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    done = whole.count(b"\n")
    assert 3 <= done < PROMPTS

    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert f"{done} of {PROMPTS} prompts have their row already" in again.stderr
    assert output.read_bytes().startswith(whole)  # not one of them was run again
    assert _untimed(output) == _untimed(undisturbed)


def test_a_finished_run_started_again_changes_nothing(prompt_set: Path, model: Path, undisturbed: Path) -> None:
    before = undisturbed.read_bytes()
    ended = run_recall(*_ring(prompt_set, model, undisturbed))
    assert (ended.code, undisturbed.read_bytes()) == (0, before)
    assert f"{PROMPTS} of {PROMPTS} prompts have their row already" in ended.err


def test_a_torn_last_line_is_set_aside_and_its_prompt_run_again(
    prompt_set: Path, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "ring.jsonl"
    lines = undisturbed.read_bytes().splitlines(keepends=True)
    torn = lines[-1][:200]
    output.write_bytes(b"".join(lines[:-1]) + torn)
    ended = run_recall(*_ring(prompt_set, model, output))
    assert ended.code == 0
    assert "its last line was cut off in writing; it is set aside in" in ended.err
    assert (tmp_path / "ring.jsonl.torn").read_bytes() == torn + b"\n"
    assert output.read_bytes().startswith(b"".join(lines[:-1]))
    assert _untimed(output) == _untimed(undisturbed)


@pytest.mark.parametrize(
    ("content", "left", "torn"),
    [
        (b"a\nb\n", b"a\nb\n", None),
        (b"a\nb", b"a\n", b"b"),
        (b"a", b"", b"a"),
        (b"a\n\xe5\xaf", b"a\n", b"\xe5\xaf"),  # in the middle of a character
        (b"", b"", None),
    ],
)
def test_only_a_line_without_its_end_is_torn(tmp_path: Path, content: bytes, left: bytes, torn: bytes | None) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    aside = set_aside_torn_line(path)
    assert path.read_bytes() == left
    assert (aside.read_bytes() if aside else None) == (torn and torn + b"\n")
    assert set_aside_torn_line(tmp_path / "none.jsonl") is None


def test_each_row_is_in_the_file_before_the_next_prompt_is_read(prompt_set: Path, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "oracle.jsonl"
    prompts = read_prompts(prompt_set)
    rows_at_begin = []

    class Watch:
        def prompt_begins(self, prompt: Prompt) -> None:
            rows_at_begin.append(len(read_results(path)))

        def tokens_read(self, count: int) -> None: ...

        def prompt_ends(self, row: ResultRow) -> None: ...

    engine = open_engine("oracle", EngineOptions(model, "gemma3"))
    with recording(path) as file:
        file.record(score(engine, prompts, Run(max_new=None, context=None, references={}), Watch()))
    assert rows_at_begin == list(range(PROMPTS))


def test_a_run_over_part_of_a_set_goes_on_with_another_part(prompt_set: Path, model: Path, tmp_path: Path) -> None:
    ids = [prompt.id for prompt in read_prompts(prompt_set)]
    output = tmp_path / "oracle.jsonl"
    assert _oracle(prompt_set, output, model=model, only=f"{ids[3]},{ids[1]}").code == 0
    assert [row.prompt_id for row in read_results(output)] == [ids[1], ids[3]]
    assert _oracle(prompt_set, output, model=model).code == 0
    assert [row.prompt_id for row in read_results(output)] == [ids[1], ids[3], ids[0], ids[2], *ids[4:]]


@pytest.fixture
def begun(prompt_set: Path, model: Path, tmp_path: Path) -> Path:
    """The file of a run that was stopped after its first row."""
    path = tmp_path / "begun.jsonl"
    first = read_prompts(prompt_set)[0].id
    assert _oracle(prompt_set, path, model=model, only=first, max_new=9).code == 0
    return path


@pytest.mark.parametrize(
    ("option", "changed", "values"),
    [
        ("--engine", {"engine": "first-record"}, "(oracle, now first-record)"),
        ("--model", {"model": "bytes"}, "(gemma3, now bytes)"),
        ("--context", {"context": 5000}, "(1024, now 5000)"),
        ("--max-new", {"max_new": 10}, "(9, now 10)"),
        ("--reference", {"reference": "copy.jsonl"}, "([], now ['copy'])"),
    ],
)
def test_going_on_with_another_setting_is_refused_by_its_name(
    prompt_set: Path, model: Path, byte_folder: Path, begun: Path, option: str, changed: dict[str, Any], values: str
) -> None:
    copy = begun.with_name("copy.jsonl")
    copy.write_bytes(begun.read_bytes())
    files = {"bytes": byte_folder, "copy.jsonl": copy}
    options = {"model": model, "max_new": 9} | {name: files.get(value, value) for name, value in changed.items()}
    ended = _oracle(prompt_set, begun, **options)
    assert ended.code == 2
    assert f"was made with another {option} {values}; give another -o, or the options of before" in ended.err
    assert begun.read_bytes() == copy.read_bytes()


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [("--dtype", "dtype", "bf16"), ("--device", "device", "cuda"), ("SET", "prompt_sha256", "0" * 64)],
)
def test_a_row_made_with_another_setting_is_refused_by_its_name(
    prompt_set: Path, model: Path, begun: Path, option: str, field: str, value: str
) -> None:
    begun.write_text(json.dumps(json.loads(begun.read_text()) | {field: value}) + "\n")
    ended = _oracle(prompt_set, begun, model=model, max_new=9)
    assert ended.code == 2
    assert f"was made with another {option} ({value}, now " in ended.err


def test_a_row_of_another_set_is_refused_even_where_no_prompt_is_in_both(
    prompt_set: Path, model: Path, begun: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(line + "\n" for line in prompt_set.read_text().splitlines()[1:]))
    ended = _oracle(other, begun, model=model, max_new=9)
    assert ended.code == 2
    assert "belongs to another SET" in ended.err


@pytest.fixture
def lines() -> list[str]:
    """The lines of a good results file."""
    return published.results_file("laptop").read_text().splitlines()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"colour": "red"}, r"not a result row \(colour: Extra inputs"),
        ({"agreement": {"x": {"answer": None, "outcome": None, "same": None, "why": 1}}}, r"agreement.x.why: Extra"),
        ({"outcome": "perhaps"}, r"not a result row \(outcome: "),
        ({"found": "yes"}, r"not a result row \(found: "),
        ({"prompt_tokens": "61"}, r"not a result row \(prompt_tokens: "),
        ({"status": "late"}, r"not a result row \(status: "),
        ({"prompt_id": "laptop-33024-1"}, "prompt 'laptop-33024-1' came before; remove one of the two rows"),
    ],
)
def test_a_row_with_an_unknown_field_or_value_is_refused_with_file_and_line(
    lines: list[str], tmp_path: Path, fields: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(json.loads(lines[1]) | fields)]))
    with pytest.raises(RecallError, match=sentence) as refused:
        read_results(path)
    assert str(refused.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(refused.value)


def test_a_cut_row_in_the_middle_is_refused_with_file_and_line(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([lines[0], lines[1][:99], lines[2]]))
    with pytest.raises(RecallError, match=r"rows\.jsonl, line 2: not a result row \(the line: Invalid JSON"):
        read_results(path)


@pytest.mark.parametrize("field", ["prompt_id", "engine", "code", "answer", "found", "asked_record"])
def test_a_row_without_a_field_that_it_must_have_is_refused(lines: list[str], tmp_path: Path, field: str) -> None:
    row = json.loads(lines[0])
    del row[field]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(RecallError, match=rf"line 1: not a result row \({field}: Field required"):
        read_results(tmp_path / "rows.jsonl")


def test_files_that_cannot_be_read_or_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(RecallError, match="is not UTF-8 text; give a file written by `recall score`"):
        read_results(tmp_path / "latin")
    with pytest.raises(RecallError, match=r"cannot be read \(No such file or directory\)"):
        read_results(tmp_path / "none")
    with (
        pytest.raises(RecallError, match=r"cannot be written \(No such file or directory\); give another -o"),
        recording(tmp_path / "none" / "rows.jsonl"),
    ):
        pass


@pytest.mark.parametrize("name", published.names("results"))
def test_published_results_are_rows_that_fit_their_published_set(name: str) -> None:
    of_set = name if name in published.names("datasets") else "laptop"
    manifest = {prompt.id: prompt for prompt in read_prompts(published.folder("datasets") / f"{of_set}.jsonl")}
    rows = read_results(published.results_file(name))
    assert rows
    for row in rows:
        prompt = manifest[row.prompt_id]
        assert row.answers(prompt.sha256, prompt.records, prompt.record, prompt.code)
        assert (row.context, row.prompt_tokens) == (prompt.context, prompt.prompt_tokens)
