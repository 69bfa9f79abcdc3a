"""The real torch_tpu runs the ring engine, on a CPU plugin in the chip's place, and gives the CPU's tokens."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engines import EngineOptions, Request, tpu_on_cpu
from engines.ring import RingEngine
from tests.test_compiled_ring import _ids


@pytest.mark.parametrize(("mode", "sizes"), [("eager", [257]), ("fuse", [257]), ("compile", [1, 40, 257, 700])])
def test_torch_tpu_gives_the_tokens_of_the_cpu(small_model: Callable[[str], Path], mode: str, sizes: list[int]) -> None:
    folder = small_model("gemma4")
    command = [sys.executable, "-m", "tests.tpu_answers", str(folder), mode, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, env=tpu_on_cpu.environment(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    cpu = RingEngine(EngineOptions(folder, "gemma4"))
    for size, answer in zip(sizes, answers, strict=True):
        request = Request("p", _ids(size), max_new=8, context=768)
        assert answer["ids"] == cpu.complete(request, lambda _: None).ids
        compiled = (2, 0) if mode == "compile" else (None, None)
        assert (answer["graphs"], answer["breaks"]) == compiled
