"""Run in a process of its own: starts `recall` over and over, each time as a fork, and kills it at a random moment.

Arguments: how many kills, the seed of the moments, and the command line. A disk that takes a row in several writes
makes kills in the middle of a row likely. Prints how many kills left a torn line behind.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from recall import cli
from tests import loaded_for_torture  # noqa: F401 - what the forks would else load, each by itself

_WRITE = os.write


def _in_pieces(file: int, content: Any) -> int:
    if file > 2:
        time.sleep(0.001)
    return _WRITE(file, content[:700])


def _run(arguments: list[str]) -> None:
    os.write = _in_pieces
    sys.argv = ["recall", *arguments]
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    cli.main()


def main(kills: int, seed: int, arguments: list[str]) -> None:
    moments = random.Random(seed)
    output = Path(arguments[arguments.index("-o") + 1])
    done = torn = 0
    while done < kills:
        child = os.fork()
        if child == 0:
            try:
                _run(arguments)
            finally:
                os._exit(1)
        if done % 2:  # at any moment of a start
            time.sleep(moments.uniform(0.002, 0.12))
        else:  # in the first rows that it writes
            before = output.stat().st_size if output.exists() else 0
            while not output.exists() or output.stat().st_size <= before:
                if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    break
                time.sleep(0.0005)
            time.sleep(moments.uniform(0.0, 0.01))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the run ended by itself after {done} kills: it has too few prompts")
        done += 1
        content = output.read_bytes() if output.exists() else b""
        torn += not content.endswith(b"\n") and content != b""
    print(torn)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
