"""Examines a run before it is made: whatever would end it or spoil its answers is found in seconds, not in hours."""

from collections.abc import Callable, Iterable, Iterator

from engines import Engine, EngineError, open_engine
from generators import GeneratorError
from recall.checkups.findings import Finding, IntendedRun, Verdict
from recall.checkups.installed import check_device, check_model, check_versions
from recall.checkups.opened import check_answer, check_limits, check_time, check_window
from recall.checkups.room import check_context, check_memory, check_output
from recall.checkups.texts import check_tokenizer
from recall.errors import RecallError

# In this order: weights are read only when these leave no problem.
_BEFORE_WEIGHTS: dict[str, Callable[[IntendedRun], Iterator[Finding]]] = {
    "versions": check_versions,
    "device": check_device,
    "output": check_output,
    "model": check_model,
    "memory": check_memory,
    "context": check_context,
    "tokenizer": check_tokenizer,
}
_NEEDED = ("versions", "device", "model", "memory")


def examine(intended: IntendedRun) -> Iterator[Finding]:
    """Yield what each check finds, as it finds it; a check that cannot go on is a problem, not an error."""
    barred: set[str] = set()
    for name, check in _BEFORE_WEIGHTS.items():
        for finding in _guarded(name, check(intended)):
            if finding.verdict is Verdict.PROBLEM and finding.check in _NEEDED:
                barred.add(finding.check)
            yield finding
        if "model" in barred:
            break  # the rest would fail for the same reason, and a hub is asked again each time
    if barred:
        says = "is not opened: it would not get far"
        yield Finding("engine", Verdict.WARNING, says, "mend what is above, then run this again for the other checks")
        return
    yield from _guarded("server" if intended.engine == "server" else "engine", _examine_open(intended))


def _examine_open(intended: IntendedRun) -> Iterator[Finding]:
    engine = open_engine(intended.engine, intended.options)
    try:
        if intended.loads:
            yield from _guarded("window", check_window(intended, engine))
        if intended.engine == "ring":
            yield from _guarded("time", check_time(intended, engine))
        if intended.engine in ("server", "llama.cpp"):
            yield from _guarded("tokenizer", check_limits(intended, engine))
        if intended.engine in ("server", "llama.cpp", "hf"):
            yield from _guarded("answer", check_answer(intended, engine))
    finally:
        _close(engine)


def _close(engine: Engine) -> None:
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def _guarded(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings; what a check raises for its user to mend is one."""
    try:
        yield from findings
    except (EngineError, GeneratorError, RecallError) as error:
        yield Finding(check, Verdict.PROBLEM, str(error))
