"""A run on a Ray cluster gives the rows of a run without one, whichever of its workers are killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from engines import sharing
from generators import read_prompts
from recall.answering import answering, open_here
from recall.commands.engine_options import EngineArguments
from recall.errors import RecallError
from recall.on_ray import LOSSES, Unseen
from recall.ray_cluster import room_for
from recall.recording import recording
from recall.results import read_results
from recall.scoring import Run
from tests.conftest import run_recall
from tests.ray_engines import Deadly, Disturbed, Unlike, Unopened, held_read, kill_who_waits

ROOT = Path(__file__).parent.parent
TIMES = {"read_s", "read_tok_s", "decode_tok_s"}
ALONE = Run(max_new=None, context=None, references={})


def _processes_of(session: int) -> dict[int, str]:
    """Return the processes that were started in a session, with what they call themselves now."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if os.getsid(int(entry.name)) == session:
                found[int(entry.name)] = (entry / "cmdline").read_text()
    return found


def _wait_until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.02)


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, int]]:
    """The address of a cluster of two CPUs, and its session; none of its processes is left in the end."""
    # Of a short name, since its sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port=0", "--num-cpus=2"]
        command += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as head:
            assert head.stdout is not None
            try:
                found = (re.search("--address='(.+)'", line) for line in head.stdout)
                yield next(match[1] for match in found if match), head.pid
            finally:
                head.terminate()
                head.wait()
                for left in _processes_of(head.pid):
                    with suppress(ProcessLookupError):
                        os.kill(left, signal.SIGKILL)


@pytest.fixture
def cluster(head: tuple[str, int]) -> Iterator[str]:
    """The address of the cluster; no test leaves a worker there."""
    address, session = head
    yield address
    _wait_until(lambda: not any("_Worker" in line for line in _processes_of(session).values()))


@pytest.fixture(scope="module")
def model(small_model: Callable[[str], Path]) -> Path:
    return small_model("gemma3")


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 8 prompts, and the rows of ring and oracle in this process."""
    folder = tmp_path_factory.mktemp("made")
    sizes = ["--budget", 512, "--budget", 1024, "--count", 4, "--answer-room", 8, "--format", "completion"]
    assert run_recall("generate", *sizes, "--tokenizer", model, "-o", folder / "set.jsonl").code == 0
    assert run_recall(*_score(folder, model, folder / "ring.jsonl")).code == 0
    oracle = ["--engine", "oracle", "--model", model, "-o", folder / "oracle.jsonl"]
    assert run_recall("score", folder / "set.jsonl", *oracle).code == 0
    return folder


def _score(made: Path, model: Path, output: Path, *more: object) -> list[object]:
    ring = ["--engine", "ring", "--model", model, "--threads", 1]
    return ["score", made / "set.jsonl", *ring, "-o", output, *more]


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row.prompt_id: row.model_dump(exclude=TIMES) for row in read_results(path)}


def test_a_run_that_goes_on_with_ray_ends_with_the_rows_of_one_without(
    cluster: str, made: Path, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "rows.jsonl"
    lines = (made / "ring.jsonl").read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:2]))
    ended = run_recall(*_score(made, model, output, "--ray", cluster))
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines()[0] == "2 of 8 prompts have their row already"
    assert ended.err.splitlines()[-1].startswith(f"{output}: 8 rows")
    assert "ray" not in ended.err.replace(str(output), "").lower()
    assert _rows(output) == _rows(made / "ring.jsonl")


def test_a_sweep_with_ray_fills_its_cells_with_the_rows_of_one_without(
    cluster: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)  # where no worker is
    sweep = ["sweep", "--engine", "ring", "--model", model.name, "--threads", 1, "--format", "completion", "--batch", 1]
    sweep += ["--lengths", "512,1024", "--depths", "3", "--seeds", "3", "--max-new", "8"]
    assert run_recall(*sweep, "-o", tmp_path / "here.jsonl").code == 0
    ended = run_recall(*sweep, "-o", tmp_path / "there.jsonl", "--ray", cluster, "--workers", 2)
    assert ended.code == 0
    assert "[18/18]" in ended.err
    assert _rows(tmp_path / "there.jsonl") == _rows(tmp_path / "here.jsonl")


def test_prompts_of_a_killed_worker_are_answered_once_by_another(cluster: str, made: Path, tmp_path: Path) -> None:
    prompts = read_prompts(made / "set.jsonl")
    engine = Disturbed("recorded", str(made / "oracle.jsonl"), folder=tmp_path, at=prompts[1].id)
    killer = Thread(target=kill_who_waits, args=[tmp_path])
    killer.start()
    with recording(tmp_path / "rows.jsonl") as file, answering(engine, ray=cluster, workers=2) as opened:
        file.record(opened.rows(prompts, ALONE, Unseen()))
    killer.join()
    rows = read_results(tmp_path / "rows.jsonl")  # refuses a second row of a prompt
    undisturbed = open_here(EngineArguments("recorded", str(made / "oracle.jsonl")), None)
    wanted = {row.prompt_id: row for row in undisturbed.rows(prompts, ALONE, Unseen())}
    assert {row.prompt_id: row for row in rows} == wanted
    assert [row.found for row in rows] == [True] * 8


def test_a_killed_worker_loses_no_row_that_it_made_of_a_seed_read_once(
    cluster: str, made: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [prompt for prompt in read_prompts(made / "set.jsonl") if prompt.seed in (0, 1)]
    engine = EngineArguments("ring", str(model), threads=1)
    killer = Thread(target=kill_who_waits, args=[tmp_path])
    killer.start()
    with answering(engine, partial(held_read, folder=tmp_path), ray=cluster, workers=1) as opened:
        rows = list(opened.rows(prompts, ALONE, Unseen()))
    killer.join()
    assert "prompts that go to another: 1" in capsys.readouterr().err
    here = open_here(engine, partial(sharing, batch=1)).rows(prompts, ALONE, Unseen())
    assert len(rows) == 4
    assert {row.prompt_id: row.model_dump(exclude=TIMES) for row in rows} == {
        row.prompt_id: row.model_dump(exclude=TIMES) for row in here
    }


def test_a_prompt_that_kills_every_worker_gets_a_row_that_says_so(cluster: str, made: Path, tmp_path: Path) -> None:
    prompts = read_prompts(made / "set.jsonl")
    engine = Disturbed("recorded", str(made / "oracle.jsonl"), kind=Deadly, at=prompts[0].id)
    with answering(engine, ray=cluster, workers=1) as opened:
        rows = list(opened.rows(prompts, ALONE, Unseen()))
    assert sorted(row.prompt_id for row in rows) == sorted(prompt.id for prompt in prompts)
    (lost,) = (row for row in rows if not row.found)
    assert (lost.prompt_id, lost.status) == (prompts[0].id, "error")
    assert (lost.note or "").startswith(f"{LOSSES} workers were lost over it")


def test_workers_that_die_as_they_open_the_engine_are_one_sentence(cluster: str, made: Path) -> None:
    engine = Disturbed("recorded", str(made / "oracle.jsonl"), kind=Unopened)
    with (
        pytest.raises(RecallError, match=f"{LOSSES} workers were lost while they opened the engine"),
        answering(engine, ray=cluster),
    ):
        pass


def test_workers_with_other_models_than_the_first_are_one_sentence(cluster: str, made: Path, tmp_path: Path) -> None:
    prompts = read_prompts(made / "set.jsonl")
    longest = max(prompts, key=lambda prompt: prompt.prompt_tokens)
    engine = Disturbed("recorded", str(made / "oracle.jsonl"), kind=Unlike, folder=tmp_path, at=longest.id)
    with answering(engine, ray=cluster, workers=2) as opened, pytest.raises(RecallError, match="are not alike"):
        list(opened.rows(prompts, ALONE, Unseen()))


def test_the_longest_prompts_are_handed_out_first(cluster: str, made: Path) -> None:
    prompts = read_prompts(made / "set.jsonl")
    engine = EngineArguments("recorded", str(made / "oracle.jsonl"))
    with answering(engine, ray=cluster, workers=1) as opened:
        sizes = [row.prompt_tokens for row in opened.rows(prompts, ALONE, Unseen())]
    assert sizes == sorted((prompt.prompt_tokens for prompt in prompts), reverse=True)
    assert sizes[0] > sizes[-1]


def test_ctrl_c_finishes_the_row_and_leaves_no_process_of_a_cluster_of_its_own(made: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    longest = sorted(read_prompts(made / "set.jsonl"), key=lambda prompt: -prompt.prompt_tokens)
    arguments = [str(made / "set.jsonl"), str(made / "oracle.jsonl"), str(tmp_path), longest[2].id, str(output)]
    program = "import sys; from tests.ray_engines import held_run; held_run(*sys.argv[1:])"
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", program, *arguments]
        # With its token mode on, Ray would leave a token in the home folder.
        environment = os.environ | {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
        # A session of its own: Ctrl-C in a terminal reaches all processes that were started from it.
        with subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as run:
            assert run.stderr is not None
            _wait_until(lambda: run.poll() is not None or (tmp_path / "pid").exists())
            os.killpg(run.pid, signal.SIGINT)
            said = run.stderr.readline()
            (tmp_path / "released").touch()
            said += run.stderr.read()
        left = [line for line in _processes_of(run.pid).values() if line]  # what has ended has no command line
    assert left == []
    assert said.splitlines() == [
        "finishing the row in the making; Ctrl-C again stops at once",
        f"stopped by Ctrl-C: {output} holds 3 rows; the same command again goes on",
    ]
    assert run.returncode == 130
    assert [row.prompt_id for row in read_results(output)] == [prompt.id for prompt in longest[:3]]


def test_without_the_package_one_sentence_names_what_to_install(
    made: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = run_recall(*_score(made, model, tmp_path / "rows.jsonl", "--ray", "auto"))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "pip install 'recall[ray]'" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_a_cluster_is_one_sentence(made: Path, model: Path, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and not listened to
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        ended = run_recall(*_score(made, model, tmp_path / "rows.jsonl", "--ray", address))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert f"--ray {address}: no Ray cluster is reached there (" in ended.err


def test_a_model_that_is_not_on_the_worker_is_one_sentence(cluster: str, made: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    ended = run_recall(*_score(made, gone, tmp_path / "rows.jsonl", "--ray", cluster))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert f"--model {gone}: there is no such file or folder on {socket.gethostname()}" in ended.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "oracle", "--workers", "2"], "--workers is for --ray"),
        (["--engine", "oracle", "--ray", "ray://head:10001"], "give HOST:PORT"),
        (["--engine", "oracle", "--ray", "head"], "give HOST:PORT"),
        (["--engine", "ring", "--device", "cuda:1", "--ray", "auto"], "give --device cpu or cuda, not 'cuda:1'"),
        (["--engine", "server", "--url", "http://localhost:1", "--ray", "auto"], "give --parallel"),
    ],
)
def test_options_that_do_not_go_with_ray_are_one_sentence(
    made: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    ended = run_recall("score", made / "set.jsonl", *options, "-o", tmp_path / "rows.jsonl")
    assert (ended.code, said in ended.err, ended.err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("machines", "asked", "given"),
    [
        ([{"GPU": 4, "CPU": 64}, {"GPU": 2, "CPU": 8}, {"CPU": 8}], ("cuda", None, None), ({"num_gpus": 1}, 6)),
        ([{"GPU": 4, "CPU": 64}], ("cuda", None, 9), ({"num_gpus": 1}, 9)),
        ([{"CPU": 8}, {"CPU": 7}], ("cpu", 2, None), ({"num_cpus": 2}, 7)),
        ([{"CPU": 8}, {"CPU": 8}], ("cpu", None, None), ({"num_cpus": 8}, 2)),
        ([{"CPU": 8}, {"CPU": 8}], ("cpu", None, 3), ({"num_cpus": 4}, 3)),
        ([{"CPU": 8}, {"CPU": 8}], ("cpu", None, 1), ({"num_cpus": 8}, 1)),
    ],
)
def test_a_worker_gets_a_gpu_or_its_threads_or_an_even_share_of_the_machines(
    machines: list[dict[str, float]], asked: tuple[str, int | None, int | None], given: tuple[dict[str, int], int]
) -> None:
    assert room_for(machines, *asked) == given


@pytest.mark.parametrize(
    ("asked", "said"),
    [(("cuda", None, None), "has no GPU"), (("cpu", 16, None), "has 16 CPUs"), (("cpu", None, 9), "--workers 9")],
)
def test_a_cluster_without_room_is_one_sentence(asked: tuple[str, int | None, int | None], said: str) -> None:
    with pytest.raises(RecallError, match=said):
        room_for([{"CPU": 8.0}], *asked)
