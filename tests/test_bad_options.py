"""Every option of every command is given what it cannot use: that ends in one sentence, never in a traceback."""

import inspect
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import huggingface_hub.constants
import pytest
import torch
import typer.main

from engines.devices import enough_memory
from engines.errors import EngineError
from recall.cli import app
from recall.errors import RecallError
from recall.results import read_results
from recall.sweeps import depths
from tests.conftest import Ended, run_recall
from tests.misbehaving import MisbehavingServer

SMALL = ["--answer-room", 6, "--format", "completion", "--tokenizer", "model"]
# A good call of every command; what it writes is called new.
CALLS: dict[str, list[object]] = {
    "generate": ["--budget", 400, *SMALL, "-o", "new"],
    "score": ["set.jsonl", "--engine", "ring", "--model", "model", "-o", "new"],
    "sweep": ["--engine", "ring", "--model", "model", "--format", "completion", "--lengths", 400, "--depths", 2,
              "--seeds", 1, "--max-new", 4, "-o", "new"],
    "rescore": ["rows.jsonl", "--reference", "laptop", "--prompts", "set.jsonl", "-o", "new"],
    "merge": ["rows.jsonl", "--prompts", "set.jsonl", "-o", "new"],
    "compare": ["tpu-v5e-ring", "laptop"],
    "report": ["rows.jsonl", "-o", "new"],
    "divergence": ["ring:model", "hf:model", "--prompts", "set.jsonl", "--last", 2],
    "plan": ["--context", 512, "--shape", "gemma-3-270m"],
    "probe": ["--model", "model", "--context", 64],
    "export-gguf": ["--model", "model", "-o", "new"],
    "doctor": ["set.jsonl", "--engine", "ring", "--model", "model", "-o", "new"],
}  # fmt: skip
NO_NUMBERS = ["", "nan", "inf", "-inf", "1e400", "many", "-1", "1,,2", "0x10", "\x1b[31m"]
HUGE = ["2147483648", "9223372036854775808", "9" * 30, "9" * 5000]
# Files that are none, or none of ours; a name with what moves a cursor, one too long, one that is no UTF-8.
NO_FILES = [
    "none/such.jsonl",
    "folder",
    "binary",
    "empty",
    "set.jsonl/x",
    "x" * 300,
    "\x1b[2J",
    "a\nb",
    "\udcff",
    "%s{}",
]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FUNCTIONS = {
    function.__name__.replace("_", "-"): function
    for function in (command.callback for command in app.registered_commands)
    if function is not None
}
OPTIONS = [
    (name, parameter)
    for name in CALLS
    for parameter in COMMANDS[name].params
    if not getattr(parameter, "is_flag", False) and parameter.name != "help"
]


@pytest.fixture(scope="module")
def files(small_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a set, its rows, and what is neither."""
    folder = tmp_path_factory.mktemp("files")
    shutil.copytree(small_model("llama"), folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_recall("generate", "--budget", 400, *SMALL, "-o", "set.jsonl").code == 0
        assert run_recall("score", "set.jsonl", "--engine", "oracle", "--model", "model", "-o", "rows.jsonl").code == 0
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)))
    return folder


@pytest.fixture
def call(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """Return what runs a command in a copy of that folder, without a network to look names up in."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "here"))

    def run(*arguments: object) -> Ended:
        for new in [*Path().glob("new*")]:
            shutil.rmtree(new) if new.is_dir() else new.unlink()
        return run_recall(*arguments)

    yield run
    assert {entry.name for entry in tmp_path.iterdir()} == {"here"}  # nothing is written beside it


def _given(name: str, parameter: Any, value: str) -> list[object]:
    """Return the good call of a command with another value of one parameter."""
    call = list(CALLS[name])
    if parameter.param_type_name == "argument":
        call[1 if parameter.name == "b" else 0] = value
        return [name, *call]
    option = "-o" if parameter.name == "output" else parameter.opts[0]
    if option in call:
        call[call.index(option) + 1] = value
        return [name, *call]
    return [name, *call, option, value]


def _ended_well(ended: Ended) -> bool:
    """Return whether a command did what it was asked; else it must have said in one sentence why not."""
    assert "Traceback" not in ended.err + ended.out
    assert ended.code in (0, 2, 3, 4)
    if ended.code == 2 and "Usage:" not in ended.err:
        (sentence,) = [line for line in ended.err.split("\n") if line.startswith("recall: ")]
        assert sentence.isprintable()
        assert 20 < len(sentence) < 2100
    return ended.code != 2


def test_every_command_is_tried_here() -> None:
    assert set(COMMANDS) == set(CALLS)
    assert len(OPTIONS) > 80


@pytest.mark.parametrize("name", CALLS)
def test_the_call_that_the_others_spoil_is_a_good_one(name: str, call: Callable[..., Ended]) -> None:
    ended = call(name, *CALLS[name])
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(("name", "parameter"), OPTIONS, ids=[f"{name} {p.name}" for name, p in OPTIONS])
def test_an_option_with_a_bad_value_ends_in_one_sentence(name: str, parameter: Any, call: Callable[..., Ended]) -> None:
    kind = get_args(inspect.signature(FUNCTIONS[name], eval_str=True).parameters[parameter.name].annotation)[0]
    numeric = "int" in str(kind) or "float" in str(kind)
    for value in NO_NUMBERS if numeric else [*NO_NUMBERS[:2], *NO_FILES]:
        went = _ended_well(call(*_given(name, parameter, value)))
        assert not (went and numeric), f"{value!r} was taken for a number"
    for value in HUGE if numeric else []:
        _ended_well(call(*_given(name, parameter, value)))
    if "enum" in str(kind) or "recall.commands" in str(kind):
        assert not _ended_well(call(*_given(name, parameter, "none-such")))


@pytest.mark.parametrize(
    ("name", "position", "values"),
    [
        ("score", 0, NO_FILES), ("merge", 0, NO_FILES), ("rescore", 0, NO_FILES), ("report", 0, NO_FILES),
        ("compare", 0, NO_FILES), ("divergence", 3, NO_FILES), ("merge", 2, NO_FILES), ("rescore", 4, NO_FILES),
        ("divergence", 0, ["", ":", "ring:", "ring:model,threads=0", "ring:model,threads=2147483648",
                           "hf:model,dtype=", "ring:model,sizes=" + "9" * 30, "hf:folder", "hf:binary", "ring:model,",
                           "llama.cpp:binary", "llama.cpp:model,timeout=1e300", "recorded:rows.jsonl",
                           "hf:model,trust_remote_code=yes"]),
        ("sweep", 7, ["", ",", "0", "-400", "4e2", "400,", "9" * 30, "400," * 1000, "2147483648"]),
        ("sweep", 9, ["", "1", "0", "-3", "nan", "0.5,nan", "inf", "2.0", "-0.1,0.5", "9" * 30, "100000", "0.5,,1"]),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    name: str, position: int, values: list[str], call: Callable[..., Ended]
) -> None:
    for value in values:
        arguments = list(CALLS[name])
        arguments[position] = value
        assert not _ended_well(call(name, *arguments)), f"{value!r} was taken"


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--timeout", ["", "nan", "inf", "-inf", "0", "1e300", "-1"]),
        ("--retries", ["", "nan", "-1", "1.5"]),
        ("--parallel", ["", "0", "-1", "inf"]),
        ("--url", ["", "http://", "ftp://x", "://", "localhost:1", "\x1b[2J", "http://127.0.0.1:99999"]),
        ("--api", ["", "none-such"]),
        ("--tokenizer", ["", "none-such", "folder", "binary", "\x1b[2J"]),
    ],
)
def test_an_option_of_a_server_with_a_bad_value_is_refused(
    option: str, values: list[str], call: Callable[..., Ended]
) -> None:
    with MisbehavingServer() as server:
        good = {"--url": server.url("well"), "--tokenizer": "model"}
        for value in values:
            options = [part for pair in (good | {option: value}).items() for part in pair]
            ended = call("score", "set.jsonl", "--engine", "server", "--model", "m", *options, "-o", "new")
            assert not _ended_well(ended), f"{value!r} was taken"


def test_more_depths_than_differ_are_refused() -> None:
    assert len(set(depths("10001"))) == 10_001
    with pytest.raises(RecallError, match="--depths '10002': give their number, from 2 to 10001"):
        depths("10002")


def test_a_context_that_no_memory_holds_is_named() -> None:
    def take() -> None:
        with enough_memory(7):
            torch.empty(10**15)

    with pytest.raises(EngineError, match="not enough memory for a context of 7; give a smaller --context"):
        take()


def test_names_that_come_from_a_file_never_become_paths(call: Callable[..., Ended]) -> None:
    rows = read_results(Path("rows.jsonl"))
    evil = "../../../evil"
    hostile = rows[0].model_copy(update={"prompt_id": evil, "engine": evil, "model": "/evil", "versions": {evil: evil}})
    Path("hostile.jsonl").write_text(hostile.model_dump_json() + "\n", encoding="utf-8")
    for command in (["report", "hostile.jsonl", "rows.jsonl", "-o", "new.html", "--plots", "new-plots"],
                    ["compare", "hostile.jsonl", "rows.jsonl"],
                    ["rescore", "hostile.jsonl", "--reference", "rows.jsonl", "-o", "new.jsonl"]):  # fmt: skip
        before = {*Path().rglob("*")}
        assert call(*command).code == 0
        made = {path for path in {*Path().rglob("*")} - before if path.is_file()}
        assert all(path.parts[0].startswith("new") for path in made)
    assert not [*Path().resolve().parent.parent.parent.glob("evil*")]
