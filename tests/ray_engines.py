"""Engines that die, or wait to be killed, in the middle of a run: for workers on a Ray cluster."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines import Completion, Engine, EngineInfo, Request, SharingEngine, sharing
from engines.protocol import OnRead
from generators import read_prompts
from recall.answering import answering
from recall.commands.engine_options import EngineArguments
from recall.on_ray import Unseen
from recall.recording import recording
from recall.scoring import Run


class Held:
    """An engine; in the middle of prompt `at` it tells its process in `folder`, and waits there to be released."""

    def __init__(self, engine: Engine, folder: Path, at: str) -> None:
        self._engine, self._folder, self._at = engine, folder, at

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def encode(self, text: str) -> list[int] | None:
        return self._engine.encode(text)

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        if request.prompt_id == self._at:
            wait_in(self._folder)
        return self._engine.complete(request, on_read)


class Deadly(Held):
    """An engine whose process dies of prompt `at`."""

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        if request.prompt_id == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._engine.complete(request, on_read)


class Unopened(Held):
    """An engine whose process dies as it is opened."""

    def __init__(self, engine: Engine, folder: Path, at: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Unlike(Held):
    """An engine that is another one in every process."""

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, fingerprint=str(os.getpid()))


@dataclass(frozen=True)
class Disturbed(EngineArguments):
    """An engine of the command line, opened as `kind`."""

    kind: type[Held] = Held
    folder: Path = Path()
    at: str = ""

    def open(self) -> Engine:
        return self.kind(super().open(), self.folder, self.at)


class HeldRead:
    """A shared read that waits in the middle of its second prompt."""

    def __init__(self, shared: SharingEngine, folder: Path) -> None:
        self._shared, self._folder = shared, folder

    @property
    def info(self) -> EngineInfo:
        return self._shared.info

    def encode(self, text: str) -> list[int] | None:
        return self._shared.encode(text)

    def complete_together(self, requests: Sequence[Request], on_read: OnRead) -> Iterator[tuple[Request, Completion]]:
        for number, answer in enumerate(self._shared.complete_together(requests, on_read), 1):
            if number == 2:
                wait_in(self._folder)
            yield answer


def held_read(engine: Any, folder: Path) -> SharingEngine:
    """Share reads with `engine`, held in `folder`."""
    shared = sharing(engine, 1)
    assert shared is not None
    return HeldRead(shared, folder)


def held_run(prompts: str, recorded: str, folder: str, at: str, output: str) -> None:
    """Record the answers of a cluster of its own, of one worker, held in `folder` at prompt `at`."""
    engine = Disturbed("recorded", recorded, folder=Path(folder), at=at)
    with recording(Path(output)) as file, answering(engine, ray="local", workers=1) as opened:
        run = Run(max_new=None, context=None, references={})
        file.record(opened.rows(read_prompts(Path(prompts)), run, Unseen()))


def wait_in(folder: Path) -> None:
    """Say in `folder` which process waits, unless one did before, and wait for `release`."""
    if not (folder / "pid").exists():
        part = folder / "pid.part"
        part.write_text(str(os.getpid()))
        part.rename(folder / "pid")
    while not (folder / "released").exists():
        time.sleep(0.01)


def kill_who_waits(folder: Path) -> None:
    """Wait for a process that waits in `folder`, kill it, and let all others go on."""
    while not (folder / "pid").exists():
        time.sleep(0.01)
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    (folder / "released").touch()
