"""However a run ends, every finished row is in its file, once and whole, and the run can go on."""

import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from generators import read_prompts
from recall.recording import recording
from recall.results import read_results
from tests.conftest import run_recall

KILLS = 220
PROMPTS = 1500


@pytest.fixture(scope="module")
def many(byte_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of many short prompts, and an undisturbed run of them by the oracle."""
    folder = tmp_path_factory.mktemp("many")
    made = ["--budget", 512, "--count", PROMPTS, "--format", "completion", "--tokenizer", byte_folder]
    assert run_recall("generate", *made, "-o", folder / "set.jsonl").code == 0
    oracle = ["--engine", "oracle", "--model", byte_folder]
    assert run_recall("score", folder / "set.jsonl", *oracle, "-o", folder / "oracle.jsonl").code == 0
    return folder


def _recorded(many: Path, output: Path) -> list[str]:
    return [
        "score",
        str(many / "set.jsonl"),
        "--engine",
        "recorded",
        "--model",
        str(many / "oracle.jsonl"),
        "-o",
        str(output),
    ]


def test_a_run_killed_hundreds_of_times_ends_with_the_rows_of_an_undisturbed_one(many: Path, tmp_path: Path) -> None:
    undisturbed, output = tmp_path / "undisturbed.jsonl", tmp_path / "killed.jsonl"
    assert run_recall(*_recorded(many, undisturbed)).code == 0
    command = [sys.executable, "-m", "tests.torture", str(KILLS), "1", *_recorded(many, output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10  # kills in the middle of a row
    assert 0 < len(output.read_bytes().splitlines()) < PROMPTS
    assert run_recall(*_recorded(many, output)).code == 0
    assert [row.prompt_id for row in read_results(output)] == [prompt.id for prompt in read_prompts(many / "set.jsonl")]
    assert output.read_bytes() == undisturbed.read_bytes()


def test_a_second_run_on_the_same_file_is_told_and_changes_nothing(many: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    with recording(output) as file:
        file.write(read_results(many / "oracle.jsonl")[0])
        before = output.read_bytes()
        second = run_recall(*_recorded(many, output))
        assert (second.code, "another run is writing to it" in second.err) == (2, True)
        assert output.read_bytes() == before


def test_a_full_disk_is_one_sentence_and_leaves_the_rows_so_far_whole(many: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    room = 10_000
    command = [sys.executable, "-m", "recall", *_recorded(many, output)]

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    full = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=small_disk)
    rows = read_results(output)
    assert full.returncode == 2
    assert f"a row cannot be written (File too large); its {len(rows)} rows are whole" in full.stderr
    assert 0 < output.stat().st_size <= room
    assert run_recall(*_recorded(many, output)).code == 0
    assert [row.prompt_id for row in read_results(output)] == [prompt.id for prompt in read_prompts(many / "set.jsonl")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_read_only_folder_is_one_sentence_before_anything_is_read(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o755)
    child = os.fork()
    if child == 0:
        os.setuid(nobody)
        try:
            with recording(folder / "rows.jsonl"):
                os._exit(0)
        except ValueError as error:
            os._exit(2 if "cannot be written (Permission denied); give another -o" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_ctrl_c_finishes_the_row_and_says_how_to_go_on(small_model: Callable[[str], Path], tmp_path: Path) -> None:
    model, output = small_model("gemma3"), tmp_path / "ring.jsonl"
    made = [
        "--budget",
        2048,
        "--count",
        12,
        "--format",
        "completion",
        "--tokenizer",
        model,
        "-o",
        tmp_path / "set.jsonl",
    ]
    assert run_recall("generate", *made).code == 0
    ring = ["score", tmp_path / "set.jsonl", "--engine", "ring", "--model", model, "--max-new", 8, "--threads", 1]
    command = [sys.executable, "-m", "recall", *map(str, [*ring, "-o", output])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None and (not output.exists() or output.read_bytes().count(b"\n") < 2):
            time.sleep(0.002)
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        said = running.stderr.read()
    rows = read_results(output)
    assert running.returncode == 130
    assert 2 <= len(rows) < 12
    assert f"stopped by Ctrl-C: {output} holds {len(rows)} rows; the same command again goes on" in said
    assert "Traceback" not in said
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert len(read_results(output)) == 12


def test_other_weights_of_the_same_name_are_refused(small_model: Callable[[str], Path], tmp_path: Path) -> None:
    made = ["--budget", 512, "--count", 2, "--format", "completion", "--tokenizer", small_model("llama")]
    assert run_recall("generate", *made, "-o", tmp_path / "set.jsonl").code == 0
    output = tmp_path / "rows.jsonl"
    ended = []
    for family in ("llama", "qwen3"):
        model = tmp_path / family / "model"
        model.parent.mkdir()
        shutil.copytree(small_model(family), model)
        scored = ["score", tmp_path / "set.jsonl", "--engine", "hf", "--model", model, "--max-new", 4, "-o", output]
        ended.append(run_recall(*scored))
    assert [run.code for run in ended] == [0, 2]
    assert "was made with another --model, other weights of that name" in ended[1].err
