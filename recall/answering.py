"""Opens the engine of a run, in this process or on a Ray cluster: either way the same prompts get the same rows."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engines import Engine, EngineInfo, SharingEngine
from generators import Prompt
from recall.errors import RecallError
from recall.results import ResultRow
from recall.scoring import Progress, Run, score
from recall.sweeps import from_one_read

if TYPE_CHECKING:
    from recall.commands.engine_options import EngineArguments

Share = Callable[[Engine], SharingEngine | None]


@dataclass(frozen=True)
class Answering:
    """An open engine.

    Attributes:
        info: what answers.
        shared: whether the prompts of one seed are answered from one read.
        rows: yields the row of each prompt as it is answered.
    """

    info: EngineInfo
    shared: bool
    rows: Callable[[Sequence[Prompt], Run, Progress], Generator[ResultRow]]


@contextmanager
def answering(
    engine: "EngineArguments", share: Share | None = None, *, ray: str | None = None, workers: int | None = None
) -> Iterator[Answering]:
    """Open `engine`, and on the way out end what was started for it.

    Args:
        engine: as it was given on the command line.
        share: makes of the open engine one that reads the prompts of a seed together; None: each is read by itself.
        ray: where a Ray cluster is, or `auto`; None: this process answers.
        workers: how many engines the cluster is to hold; None: as many as it has room for.

    Raises:
        EngineError: for a model it cannot load, or an option it cannot serve.
        RecallError: for an option that is missing or does not go with another, or a cluster that cannot be reached.
    """
    if ray is not None:
        from recall.on_ray import on_ray

        with on_ray(engine, share, ray, workers) as cluster:
            yield cluster
    elif workers is not None:
        raise RecallError("--workers is for --ray: give --ray auto, too, or leave it out")
    else:
        yield open_here(engine, share)


def open_here(engine: "EngineArguments", share: Share | None) -> Answering:
    """Open `engine` in this process.

    Raises:
        EngineError: for a model it cannot load, or an option it cannot serve.
    """
    opened = engine.open()
    together = share(opened) if share else None
    if together is None:
        return Answering(opened.info, False, partial(score, opened))
    return Answering(together.info, True, partial(from_one_read, together))
