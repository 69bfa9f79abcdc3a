"""A real llama-server for tests, on this machine, in a process of its own: `with llama_server(gguf) as url`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def llama_server(gguf: Path, *, slots: int, slot_context: int, key: str) -> Iterator[str]:
    """Serve a model with `slots` slots of `slot_context` tokens each; yield the server's address."""
    arguments = [str(gguf), str(slots), str(slots * slot_context), key]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.llama_server", *arguments],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            # The library writes lines of its own.
            url = next((line.strip() for line in process.stdout if line.startswith("http://")), None)
            assert url is not None, "the server ended before it served"
            yield url
        finally:
            # It may hang when it is asked to end.
            process.kill()


def _serve(gguf: str, slots: int, context: int, key: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_parallel = slots
    params.n_ctx = context
    params.api_keys = [key]
    # One thread: two would wait for each other, spinning, wherever something else keeps a core busy.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()  # until the process that started this one is gone
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
