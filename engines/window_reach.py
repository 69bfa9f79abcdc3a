"""Measures on the loaded model how far a sliding layer looks back: one token is changed, and the attention's output
changes or does not.

Only the first sliding layer runs, on the embeddings, over one token more than its window: through it alone nothing
can come from farther away, and what an attention cannot reach it must leave as it is, to the bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engines.errors import EngineError
from engines.hf import HfEngine
from engines.plain_pass import Taps, window_of
from engines.ring import RingEngine
from engines.ring_cache import PIECE, layer_kinds

_LARGEST = 8192  # window that is measured: plain attention takes its square
_TRIES = 8  # other tokens: a far one may weigh too little to be seen


@dataclass(frozen=True)
class Reach:
    """Whether a query sees the farthest position of its window, itself counted, and whether the one behind that."""

    window: int
    farthest: bool
    beyond: bool


@torch.inference_mode()
def window_reach(engine: RingEngine | HfEngine) -> Reach | None:
    """Measure an engine in eager mode; None for a model without sliding layers, or one that cannot be measured so."""
    model = engine.loaded.model
    config = model.config.get_text_config()
    try:
        window, kinds, taps = window_of(config), layer_kinds(config), Taps(model)
    except EngineError:
        return None
    if window is None or window > _LARGEST:
        return None
    return _measure(engine, config, taps, kinds.index("sliding_attention"), window)


def _measure(engine: RingEngine | HfEngine, config: Any, taps: Taps, layer: int, window: int) -> Reach:
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (window + 1,), generator=source)
    farthest = beyond = False
    with taps.open(apart=True), _only(taps, layer):
        before = _read(engine, taps, layer, ids)
        for attempt in range(_TRIES):
            changed = ids.clone()
            changed[0] = (ids[0] + 1 + attempt) % config.vocab_size
            after = _read(engine, taps, layer, changed)
            farthest = farthest or not torch.equal(before[0], after[0])
            beyond = beyond or not torch.equal(before[1], after[1])
            if farthest:
                break
    return Reach(window, farthest, beyond)


class _Enough(Exception):  # noqa: N818 - no error: what was wanted has been computed
    """Ends a forward behind the layer that is looked at."""


@contextmanager
def _only(taps: Taps, layer: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _Enough

    handle = taps.layers[layer].self_attn.register_forward_hook(stop)
    try:
        yield
    finally:
        handle.remove()


def _read(engine: RingEngine | HfEngine, taps: Taps, layer: int, ids: Tensor) -> Tensor:
    """Return the attention's output for the last two of ids `[n]`: `[2, hidden]`."""
    if isinstance(engine, RingEngine):
        return _read_ring(engine, taps, layer, ids)
    with suppress(_Enough):
        engine.loaded.model.base_model(ids[None].to(engine.loaded.device), use_cache=False)
    return taps.kept[layer][-2:].clone()


def _read_ring(engine: RingEngine, taps: Taps, layer: int, ids: Tensor) -> Tensor:
    """Do so through the ring cache: all but the last two are read in pieces, those one by one."""
    device = engine.loaded.device
    ids, positions = ids.to(device), torch.arange(len(ids), device=device)
    _, programs = engine.prepare(len(ids))
    last = len(ids) - 2
    for begin in range(0, last, PIECE):
        end = min(begin + PIECE, last)
        with suppress(_Enough):
            programs.piece(ids[begin:end], positions[begin:end], end)
    outputs = []
    for at in (last, last + 1):
        with suppress(_Enough):
            programs.logits(ids[at : at + 1], positions[at : at + 1], at + 1)
        outputs.append(taps.kept[layer][-1].clone())
    return torch.stack(outputs)
