"""The Ray cluster of a run: it is reached, or refused in one sentence, and says how many workers it has room for."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import psutil

from recall.errors import RecallError

_REACHED_S = 5.0
_ENDED_S = 2.0


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster and give the module `ray`; a cluster that was started for this ends with it.

    Args:
        address: `HOST:PORT`; `auto`: that of `RAY_ADDRESS`, or the one `ray start` started here, or else one on this
            machine for this run; `local`: always that.

    Raises:
        RecallError: when Ray is not installed, or no cluster is there.
    """
    # Read when ray is imported. The pattern is of lines not to be shown: ours say when a worker is lost.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise RecallError("--ray needs the package ray, which is not installed: pip install 'recall[ray]'") from error
    wanted = os.environ.get("RAY_ADDRESS") or None if address == "auto" else address
    if wanted not in (None, "local"):
        _check_that_somebody_is_there(str(wanted))
    before = psutil.Process().children(recursive=True)
    try:
        try:
            ray.init(wanted, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise _unreachable(address, first) from error
        yield ray
    finally:
        started = set(psutil.Process().children(recursive=True)) - set(before)
        ray.shutdown()
        # On a busy machine Ray kills the head of its processes before that has ended the others: they would stay for
        # minutes.
        _, left = psutil.wait_procs(started, timeout=_ENDED_S)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_ENDED_S)


def machines(ray: Any) -> list[Mapping[str, float]]:
    """Return what each machine of the cluster has: `CPU`, `GPU` and others, by name."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def room_for(
    machines: Sequence[Mapping[str, float]], device: str, threads: int | None, workers: int | None
) -> tuple[dict[str, int], int]:
    """Return what Ray is asked to give each worker, and how many workers there are to be.

    With `cuda` a worker has a GPU. Else it has `threads` CPUs; without that number an even share of the cluster's CPUs;
    and without a number of workers, too, all those of a machine.

    Raises:
        RecallError: when the cluster has no room for a worker.
    """
    if device == "cuda":
        count = workers or sum(int(machine.get("GPU", 0)) for machine in machines)
        if not count:
            raise RecallError("--ray: the cluster has no GPU; give --device cpu, or a cluster with GPUs")
        return {"num_gpus": 1}, count
    cpus = [int(machine.get("CPU", 0)) for machine in machines]
    if threads is not None:
        count = workers or sum(have // threads for have in cpus)
        if not count:
            raise RecallError(
                f"--ray: no machine of the cluster has {threads} CPUs, at most {max(cpus)}; give fewer --threads"
            )
        return {"num_cpus": threads}, count
    count = workers or sum(have > 0 for have in cpus)
    for share in range(max(cpus), 0, -1):
        if sum(have // share for have in cpus) >= count:
            return {"num_cpus": share}, count
    raise RecallError(f"--workers {count}: the cluster has {sum(cpus)} CPUs; give fewer workers")


def _check_that_somebody_is_there(address: str) -> None:
    """Raise `RecallError` unless something listens at `address`: Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()) or "/" in host:
        raise RecallError(
            f"--ray {address!r}: give HOST:PORT of the cluster's head, on a machine of the cluster; auto; or local"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> RecallError:
    return RecallError(
        f"--ray {address}: no Ray cluster is reached there ({why}); give the address that `ray start --head` printed, "
        "or local for one on this machine"
    )
