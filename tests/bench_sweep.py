"""Measures what a length x depth grid costs from one read, and cell by cell with `ring` and `hf`. Not a test.

`make bench-sweep`. One seed. The sweep is measured whole, three times; of the others one cell of each length, at half
depth, and each counts as often as there are depths. Each measurement is a process of its own; loading is not counted.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (2048, 4096, 8192, 16_384)
DEPTHS = 11
REPEATS = 3


def measure(engine: str, lengths: Sequence[int], depths: Sequence[float], threads: int) -> None:
    """Answer every length x depth with the demo model in fp32; print seconds by length and peak bytes as JSON."""
    from engines import EngineOptions, Request, open_engine, sharing
    from generators import PromptTokenizer, make_prompts, seeded_specs
    from recall.demo import demo_folder

    folder = demo_folder(print)
    specs = seeded_specs("completion", seed=1, budgets=lengths, contexts=[max(LENGTHS)], depths=depths)
    prompts = list(make_prompts(specs, PromptTokenizer(folder, "demo"), "completion"))
    opened = open_engine("hf" if engine == "hf" else "ring", EngineOptions(folder, "demo", threads=threads))
    requests = [
        Request(prompt.id, opened.encode(prompt.text or "") or [], 64, prompt.context, prompt.stop)
        for prompt in prompts
    ]
    opened.complete(Request("warm", requests[0].ids[:512], 1, requests[0].context), lambda _: None)
    start = time.perf_counter()
    shared = sharing(opened, None) if engine == "sweep" else None
    if shared:
        ids = {request.prompt_id: answer.ids for request, answer in shared.complete_together(requests, lambda _: None)}
    else:
        ids = {request.prompt_id: opened.complete(request, lambda _: None).ids for request in requests}
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "ids": ids}))


@dataclass(frozen=True)
class Measured:
    """What one process measured; `ids`: each cell's answer."""

    seconds: float
    peak: float
    ids: dict[str, list[int]]


def _process(engine: str, lengths: Sequence[int], depths: Sequence[float], threads: int) -> Measured:
    command = [sys.executable, "-m", "tests.bench_sweep", "--one", engine, json.dumps([lengths, depths, threads])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def compare(threads: int) -> None:
    """Print the table, in Markdown."""
    every = [place / (DEPTHS - 1) for place in range(DEPTHS)]
    sweeps: list[Measured] = []
    cells: dict[str, list[Measured]] = {"ring": [], "hf": []}
    for number, length in enumerate(LENGTHS):
        if number < REPEATS:
            sweeps.append(_process("sweep", LENGTHS, every, threads))
        for engine, measured in cells.items():
            measured.append(_process(engine, [length], [0.5], threads))
    seconds = {"sweep": statistics.median(found.seconds for found in sweeps)}
    peaks = {"sweep": statistics.median(found.peak for found in sweeps)}
    for engine, measured in cells.items():
        seconds[engine] = DEPTHS * sum(found.seconds for found in measured)
        peaks[engine] = max(found.peak for found in measured)
    alone = {name: ids for found in cells["ring"] for name, ids in found.ids.items()}
    alike = all(sweep.ids[name] == ids for sweep in sweeps for name, ids in alone.items())
    print(f"{len(LENGTHS)} lengths up to {max(LENGTHS)} x {DEPTHS} depths, one seed; the same ids as alone: {alike}\n")
    print("| cells | seconds | times the sweep's | peak GB | times one prompt's |")
    print("|---|---:|---:|---:|---:|")
    names = {"sweep": "`recall sweep`, one read", "ring": "`ring`, one by one", "hf": "`hf`, one by one"}
    for engine, name in names.items():
        times, memory = seconds[engine] / seconds["sweep"], peaks[engine] / peaks["ring"]
        print(f"| {name} | {seconds[engine]:.0f} | {times:.1f} | {peaks[engine] / 1e9:.2f} | {memory:.2f} |")


def main() -> None:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--one", nargs=2, metavar=("ENGINE", "JSON"))
    given = options.parse_args()
    if given.one:
        measure(given.one[0], *json.loads(given.one[1]))
    else:
        compare(given.threads)


if __name__ == "__main__":
    main()
