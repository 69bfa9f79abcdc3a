"""Forecasts how long the ring engine takes from one timed piece and one timed step, scaled by what `plan` counts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engines.plan import Cost, Costs, read_compiled, read_eagerly
from engines.programs import visible_sizes
from engines.protocol import DType, Request
from engines.ring import RingEngine
from engines.ring_cache import PIECE


@dataclass(frozen=True)
class Forecast:
    """Seconds of a whole run: made ready (programs are compiled then), read, and answered to the last token allowed."""

    ready_s: float
    read_s: float
    answer_s: float

    @property
    def total_s(self) -> float:
        """Of all three."""
        return self.ready_s + self.read_s + self.answer_s


@torch.inference_mode()
def forecast_ring(engine: RingEngine, requests: Sequence[Request], dtype: DType, sizes: int) -> Forecast:
    """Time a piece and a step where half of the longest request's prompt is read, and scale them to all requests.

    A piece takes time as its FLOPs, a step as the bytes that it moves.

    Args:
        engine: an open one.
        requests: of the run, with ids as many as their prompts have; what the ids are does not matter.
        dtype: of weights and cache.
        sizes: in how many sizes of the filled context it is compiled.
    """
    longest = max(requests, key=lambda request: len(request.ids))
    begin = len(longest.ids) // 2 // PIECE * PIECE
    ready_s, piece_s, step_s = _timed(engine, longest.context, begin)
    costs = {context: Costs(engine.config, context, dtype) for context in {request.context for request in requests}}
    parts = {context: visible_sizes(cost.slots, sizes) for context, cost in costs.items()}

    def seen(context: int, end: int) -> int:
        return next(size for size in parts[context] if size >= end) if engine.fixed_shapes else end

    at = seen(longest.context, begin + PIECE)
    flops_per_s = costs[longest.context].piece(PIECE, at).flops / piece_s
    bytes_per_s = costs[longest.context].step(at).bytes / step_s
    read_s = answer_s = 0.0
    for request in requests:
        cost, tokens = costs[request.context], len(request.ids)
        programs = (
            read_compiled(cost, tokens, parts[request.context]) if engine.fixed_shapes else read_eagerly(cost, tokens)
        )
        read_s += sum(programs, Cost()).flops / flops_per_s
        answer_s += request.max_new * cost.step(seen(request.context, tokens)).bytes / bytes_per_s
    return Forecast(ready_s * len(costs), read_s, answer_s)


def _timed(engine: RingEngine, context: int, begin: int) -> tuple[float, float, float]:
    """Return the seconds of making ready for a context, of a piece that begins at `begin`, of a step behind it."""
    start = time.perf_counter()
    _, programs = engine.prepare(context)
    ready_s = time.perf_counter() - start
    end = begin + PIECE
    positions = torch.arange(begin, end, device=engine.loaded.device)
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(engine.config.vocab_size, (PIECE,), generator=source).to(positions.device)

    def run(pieces: int) -> float:
        start = time.perf_counter()
        for _ in range(pieces):
            programs.piece(ids, positions, end)
        int(programs.step(ids[-1:], positions[-1:], end).token)  # reading it makes the device finish
        return time.perf_counter() - start

    run(1)  # slots are allocated, kernels loaded
    step_s = run(0)
    piece_s = max(run(1) - step_s, 1e-9)
    return ready_s, piece_s, step_s
