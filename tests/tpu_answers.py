"""Run in a process of its own: the ring engine on TorchTPU's device, which is a CPU plugin here; prints JSON.

Arguments: the model's folder, the mode, and the prompt sizes.
"""

import json
import sys

from engines import tpu_on_cpu

tpu_on_cpu.start()

from engines import EngineOptions, Request  # noqa: E402 - the device must be there before models are loaded
from engines.protocol import Mode  # noqa: E402
from engines.ring import RingEngine  # noqa: E402
from tests.test_compiled_ring import _ids  # noqa: E402


def main(folder: str, mode: Mode, sizes: list[int]) -> None:
    """Print the ids, graphs and breaks of each prompt."""
    engine = RingEngine(EngineOptions(folder, "small", device="tpu", mode=mode, sizes=1))
    answers = []
    for size in sizes:
        completion = engine.complete(Request("p", _ids(size), max_new=8, context=768), lambda _: None)
        answers.append({"ids": completion.ids, "graphs": completion.graphs, "breaks": completion.breaks})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])  # type: ignore[arg-type]
