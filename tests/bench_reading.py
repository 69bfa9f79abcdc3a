"""Measures how fast `ring` and `hf` read, and how much memory that takes: `make bench`. Not a test.

Each reading is a process of its own, the engines take turns, and the table gives the median of the repeats.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys

LENGTHS = (4096, 16_384, 32_704)


def measure(engine: str, length: int, threads: int) -> None:
    """Read one random prompt of `length` tokens with the demo model in fp32; print seconds and peak bytes as JSON."""
    import torch

    from engines import EngineOptions, Request, open_engine
    from recall.demo import demo_folder

    ids = [2, *torch.randint(3, 200_000, (length - 1,), generator=torch.Generator().manual_seed(0)).tolist()]
    opened = open_engine(engine, EngineOptions(demo_folder(print), "demo", threads=threads))
    opened.complete(Request("warm", ids[:512], 1, length + 64), lambda _: None)
    completion = opened.complete(Request("p", ids, 1, length + 64), lambda _: None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": completion.read_s, "peak": peak, "first": completion.ids}))


def compare(lengths: list[int], repeats: int, threads: int) -> None:
    """Print the table of both engines, in Markdown, row by row as it is measured."""
    print("| tokens | ring tok/s | hf tok/s | ring is faster by | ring peak GB | hf peak GB |")
    print("|---:|---:|---:|---:|---:|---:|", flush=True)
    for length in lengths:
        seconds: dict[str, list[float]] = {"ring": [], "hf": []}
        peaks: dict[str, list[int]] = {"ring": [], "hf": []}
        for _ in range(repeats):
            for engine, taken in seconds.items():
                command = [sys.executable, "-m", "tests.bench_reading", "--one", engine, str(length), str(threads)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                reading = json.loads(done.stdout.splitlines()[-1])
                taken.append(reading["seconds"])
                peaks[engine].append(reading["peak"])
        ring, hf = (statistics.median(seconds[engine]) for engine in ("ring", "hf"))
        memory = [f"{statistics.median(peaks[engine]) / 1e9:.2f}" for engine in ("ring", "hf")]
        speeds = f"{length / ring:.0f} | {length / hf:.0f} | {hf / ring:.2f}x"
        print(f"| {length} | {speeds} | {' | '.join(memory)} |", flush=True)


def main() -> None:
    """Read the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--one", nargs=3, metavar=("ENGINE", "LENGTH", "THREADS"))
    given = options.parse_args()
    if given.one:
        measure(given.one[0], int(given.one[1]), int(given.one[2]))
    else:
        compare(list(given.lengths), given.repeats, given.threads)


if __name__ == "__main__":
    main()
