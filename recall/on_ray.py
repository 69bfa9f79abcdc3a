"""Engines on a Ray cluster: every prompt gets its one row, whichever workers are lost on the way.

Each worker is an actor with an engine of its own. What is handed out, the longest first, is a prompt, or the prompts
of a seed where they share a read. What a lost worker had still to answer goes to another.
"""

import socket
import sys
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import Completion, EngineError, EngineInfo, Request
from engines.protocol import OnRead
from generators import GeneratorError, Prompt
from recall.answering import Answering, Share, open_here
from recall.engine_specs import TAKEN_BY
from recall.errors import RecallError
from recall.ray_cluster import connected, machines, room_for
from recall.results import ResultRow
from recall.scoring import Progress, Run, row_of

if TYPE_CHECKING:
    from recall.commands.engine_options import EngineArguments

LOSSES = 3  # workers that a prompt may lose, one after the other, before it is given up
_PATIENCE_S = 60  # without a worker, before that is said


@contextmanager
def on_ray(engine: "EngineArguments", share: Share | None, address: str, workers: int | None) -> Iterator[Answering]:
    """Open engines on a Ray cluster, and end them on the way out; see `recall.answering.answering`.

    Raises:
        EngineError: for a model that a worker cannot load, or an option it cannot serve.
        RecallError: when Ray is not installed, the cluster cannot be reached, has no room, or its workers are lost
            while they open the engine.
    """
    _check(engine)
    with connected(address) as ray:
        needs, count = room_for(machines(ray), engine.device, engine.threads, workers)
        if engine.threads is None and "num_cpus" in needs and engine.engine in TAKEN_BY["threads"]:
            engine = replace(engine, threads=needs["num_cpus"])
        # Ray ends all workers of a run when it disconnects.
        pool = _Pool(ray, ray.remote(max_restarts=0, **needs)(_Worker), (_with_whole_paths(engine), share), count)
        info, shared = pool.open()
        yield Answering(info, shared, pool.rows)


class _Worker:
    """One engine, on some machine of the cluster; a Ray actor is made of it."""

    def __init__(self, engine: "EngineArguments", share: Share | None) -> None:
        """Hold what is opened by `open`: an error of a constructor would reach nobody."""
        self._engine, self._share = engine, share

    def open(self) -> tuple[EngineInfo, bool]:
        """Open the engine and say what it is, and whether it shares reads."""
        model = Path(self._engine.model)
        if model.is_absolute() and not model.exists():
            raise RecallError(
                f"--model {model}: there is no such file or folder on {socket.gethostname()}, a machine of the Ray "
                "cluster; put it there under the same path, for example on a disk that all share, or give a hub name"
            )
        self._answers = open_here(self._engine, self._share)
        return self._answers.info, self._answers.shared

    def rows(self, prompts: Sequence[Prompt], run: Run) -> Iterator[ResultRow]:
        """Yield the row of each prompt as it is answered."""
        yield from self._answers.rows(prompts, run, Unseen())


class Unseen:
    """Progress that nobody looks at: the driver shows its own."""

    def prompt_begins(self, prompt: Prompt) -> None:
        """Show nothing."""

    def tokens_read(self, count: int) -> None:
        """Show nothing."""

    def prompt_ends(self, row: ResultRow) -> None:
        """Show nothing."""


class _Group:
    """Prompts that are handed out together: those without a row, and how many workers were lost since the last row."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.left = {prompt.id: prompt for prompt in prompts}
        self.tokens = max(prompt.prompt_tokens for prompt in prompts)
        self.lost = 0


class _Pool:
    """Up to `most` workers: those that open their engine, those that are free, and those that answer.

    `most` sinks to those that are there when others are lost in opening, one after the other.
    """

    def __init__(self, ray: Any, kind: Any, arguments: tuple[Any, ...], most: int) -> None:
        self._ray, self._kind, self._arguments, self._most = ray, kind, arguments, most
        self._opening: dict[Any, Any] = {}
        self._free: list[Any] = []
        self._answering: dict[Any, tuple[Any, _Group]] = {}  # by the stream of rows
        self._said: tuple[EngineInfo, bool] | None = None  # what the first worker is
        self._lost_opening = 0
        self._patient = True

    def open(self) -> tuple[EngineInfo, bool]:
        """Start all workers, wait for the first, and return what it is and whether it shares reads."""
        while self._said is None:
            self._fill(self._most)
            self._has_opened(self._next())
        return self._said

    def rows(self, prompts: Sequence[Prompt], run: Run, progress: Progress) -> Generator[ResultRow]:
        """Yield the row of each prompt as it comes."""
        _, shared = self.open()
        waiting = deque(_groups(prompts, together=shared))
        given = self._ray.put(run)
        while waiting or self._answering:
            self._fill(min(self._most, len(waiting) + len(self._answering)))
            while waiting and self._free:
                worker, group = self._free.pop(), waiting.popleft()
                stream = worker.rows.options(num_returns="streaming").remote(list(group.left.values()), given)
                self._answering[stream] = worker, group
            ready = self._next()
            if ready in self._opening:
                self._has_opened(ready)
                continue
            worker, group = self._answering[ready]
            try:
                rows = [self._result(next(ready))]
            except StopIteration:
                del self._answering[ready]
                self._free.append(worker)
                if shared:
                    progress.tokens_read(group.tokens)
                continue
            except self._ray.exceptions.RayError as error:
                del self._answering[ready]
                rows = self._after_loss(group, run, error)
                if not rows and group.left:
                    waiting.appendleft(group)
            for row in rows:
                progress.prompt_begins(group.left.pop(row.prompt_id))
                group.lost = 0
                progress.prompt_ends(row)
                yield row

    def _fill(self, wanted: int) -> None:
        """Start what is missing to so many workers."""
        for _ in range(wanted - len(self._opening) - len(self._free) - len(self._answering)):
            worker = self._kind.remote(*self._arguments)
            self._opening[worker.open.remote()] = worker

    def _next(self) -> Any:
        """Wait for the first worker that has opened its engine or made a row, and return what stands for it."""
        asked = [*self._opening, *self._answering]
        hurried = self._patient and not self._answering
        ready, _ = self._ray.wait(asked, num_returns=1, timeout=_PATIENCE_S if hurried else None)
        if not ready:
            self._patient = False
            _say("no worker is ready yet: the cluster has still to find room for it, or the model to be loaded")
            return self._next()
        return ready[0]

    def _has_opened(self, ready: Any) -> None:
        worker = self._opening.pop(ready)
        try:
            said = self._result(ready)
        except self._ray.exceptions.RayError as error:
            self._lost_opening += 1
            if self._lost_opening >= LOSSES:
                self._most = len(self._opening) + len(self._free) + len(self._answering)
            if self._most:
                return
            last = str(error).strip().splitlines()[-1]
            raise RecallError(f"--ray: {LOSSES} workers were lost while they opened the engine ({last})") from error
        self._lost_opening = 0
        self._said = self._said or said
        if said != self._said:
            raise RecallError(
                f"--ray: the workers are not alike, one is {said[0]}, another {self._said[0]}: give the cluster's "
                "machines the same packages and the same model"
            )
        self._free.append(worker)

    def _result(self, reference: Any) -> Any:
        """Return what a worker returned, or raise what it raised."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (EngineError, GeneratorError, RecallError)):
                raise error.cause from None
            raise RuntimeError(f"a worker failed: {error}") from error

    def _after_loss(self, group: _Group, run: Run, error: Exception) -> list[ResultRow]:
        """Return the rows which say that prompts are given up: none while another worker may try."""
        why = type(error).__name__
        group.lost += 1
        if group.lost < LOSSES:
            _say(f"a worker was lost ({why}); prompts that go to another: {len(group.left)}")
            return []
        lost = _Lost(self.open()[0])
        note = f"{LOSSES} workers were lost over it, the last by {why}: the logs of Ray say more"
        return [row_of(prompt, lost, run, None, None, note=note) for prompt in group.left.values()]


class _Lost:
    """Stands in a row for the engine that was lost with its worker."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info

    def encode(self, text: str) -> None:
        """Make no ids."""

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Answer nothing."""
        raise EngineError("its worker was lost")


def _groups(prompts: Iterable[Prompt], *, together: bool) -> list[_Group]:
    """Return what is handed out, the longest first: single prompts, or those of a seed `together`."""
    alike: defaultdict[str | int, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        alike[prompt.seed if together else prompt.id].append(prompt)
    return sorted(map(_Group, alike.values()), key=lambda group: -group.tokens)


def _check(engine: "EngineArguments") -> None:
    if engine.engine == "server":
        raise RecallError("--ray is for engines that compute; a server is asked by one process: give --parallel")
    if engine.device not in ("cpu", "cuda"):
        raise RecallError(f"--ray gives each worker its device: give --device cpu or cuda, not {engine.device!r}")


def _with_whole_paths(engine: "EngineArguments") -> "EngineArguments":
    """Return `engine` with a model that other working folders find, too."""
    model = Path(engine.model)
    return replace(engine, model=str(model.absolute())) if model.exists() else engine


def _say(text: str) -> None:
    print(text, file=sys.stderr)
