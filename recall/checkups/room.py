"""Looks whether model, context and results have room, before any weight is read."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines import EngineError
from recall.checkups.findings import Finding, IntendedRun, Verdict, gigabytes
from recall.errors import RecallError

_TIGHT = 0.9  # of the free memory: what computing takes is not counted
# Bytes of a row: its fields; and of each token of an answer the likeliest ones at its place.
_ROW, _TOKEN = 3_000, 400
_WIDTHS = {"fp32": 4, "bf16": 2}  # bytes of a number


def check_memory(intended: IntendedRun) -> Iterator[Finding]:
    """Compare weights and KV cache with the memory that is free.

    Raises:
        EngineError: for a model whose shape cannot be told.
    """
    from engines.memory import free_bytes

    if intended.engine == "llama.cpp":
        device, context, least, most, parts = "cpu", *_of_gguf(intended)
    elif intended.engine == "hf" and not _is_counted(intended.config):
        says = "nothing here tells what the cache of this model's layers takes"
        yield Finding("memory", Verdict.WARNING, says, "watch the memory of its first prompts")
        return
    elif intended.loads:
        device, context, least, most, parts = intended.options.device, *_of_checkpoint(intended)
    else:
        return
    free = free_bytes(device)
    says = f"{parts} for a context of {context:,}"
    smaller = "a smaller --context, a smaller model, or more memory"
    if intended.loads and intended.options.dtype == "fp32":
        smaller = f"--dtype bf16, which takes half; {smaller}"
    if free is None:
        yield Finding(
            "memory", Verdict.WARNING, f"{says}; nothing tells what {device} has free", "compare with its data sheet"
        )
        return
    says += f"; {gigabytes(free)} free"
    if least > free:
        yield Finding("memory", Verdict.PROBLEM, says, smaller)
    elif most > _TIGHT * free:
        yield Finding("memory", Verdict.WARNING, f"{says}, and what computing takes is not counted", smaller)
    else:
        yield Finding("memory", Verdict.OK, says)


def check_context(intended: IntendedRun) -> Iterator[Finding]:
    """Compare the context with what the model was trained for, and the prompts with the context.

    Raises:
        EngineError: for a model whose configuration cannot be read.
    """
    try:
        intended.run.check(intended.prompts)
    except RecallError as error:
        yield Finding("context", Verdict.PROBLEM, str(error))
    trained, longest = intended.trained_context, intended.longest
    if trained is None or longest is None:
        return
    if longest > trained:
        yield Finding(
            "context",
            Verdict.WARNING,
            f"up to {longest:,} tokens, and the model was trained for {trained:,}: what it finds beyond tells little",
            f"a set of at most {trained:,} tokens, or another model",
        )
    else:
        yield Finding("context", Verdict.OK, f"up to {longest:,} tokens, of {trained:,} that the model was trained for")


def check_output(intended: IntendedRun) -> Iterator[Finding]:
    """Find a results file that cannot be written, that another run writes to, or whose disk is full."""
    path = intended.output
    if path is None:
        return
    problem = _why_not_writable(path)
    if problem:
        yield Finding("output", Verdict.PROBLEM, f"{path}: {problem}", "give another -o")
        return
    if path.exists() and _is_locked(path):
        says = f"{path}: another run is writing to it"
        yield Finding("output", Verdict.PROBLEM, says, "wait for its end, or give another -o")
        return
    needed = sum(_ROW + _TOKEN * intended.run.request(prompt).max_new for prompt in intended.prompts)
    free = shutil.disk_usage(path.parent).free
    says = f"{path}: up to {needed / 1e6:,.1f} MB of rows, {gigabytes(free)} free"
    if free <= needed:
        yield Finding("output", Verdict.PROBLEM, says, "make room, or give another -o")
    else:
        yield Finding("output", Verdict.OK, says)


def _of_gguf(intended: IntendedRun) -> tuple[int, int, int, str]:
    from engines.memory import needed_by_llama_cpp

    file = intended.gguf
    context = intended.context or file.context_length or 4096
    least, most = needed_by_llama_cpp(file, context, intended.options.llama_cpp.kv_type)
    return context, least, most, f"weights and cache take {_span(least, most)}"


def _of_checkpoint(intended: IntendedRun) -> tuple[int, int, int, str]:
    from engines.plain_pass import window_of
    from engines.plan import Costs

    context = intended.context or intended.trained_context or 4096
    costs = Costs(intended.config, context, intended.options.dtype)
    cache = costs.cache_bytes
    parts = f"weights {gigabytes(costs.weight_bytes)} and cache {gigabytes(cache)}"
    needed = costs.weight_bytes + cache
    if intended.options.device.startswith("tpu"):
        needed += cache
        parts += ", twice: TorchTPU does not give the old one up for the new one,"
    elif intended.engine == "hf" and window_of(intended.config):
        # Measured (`make bench`): beside activations, every position's mask over all others, as a byte and as a number.
        tokens = max((prompt.prompt_tokens for prompt in intended.prompts), default=context)
        mask = tokens**2 * (1 + _WIDTHS[intended.options.dtype])
        needed += mask
        parts += f", mask of the whole prompt {gigabytes(mask)},"
    return context, needed, needed, parts


def _is_counted(config: Any) -> bool:
    from engines.ring_cache import layer_kinds

    try:
        layer_kinds(config)
    except EngineError:
        return False
    return True


def _span(least: int, most: int) -> str:
    return gigabytes(most) if least == most else f"{gigabytes(least)} to {gigabytes(most)}"


def _why_not_writable(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "cannot be written"
    return None


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
