"""Defects to plant in the ring engine, each a small change of one of its methods, with the check that must find it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from engines import ring
from engines.programs import Programs
from engines.protocol import Mode
from engines.ring import RingEngine
from engines.ring_cache import PIECE, RingCache, RingLayer, SlotTable

WINDOW = 48  # of the small models
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Defect:
    """A planted defect: the family and mode of engine that it shows in, and the check that must find it."""

    plant: Plant
    family: str = "gemma3"
    mode: Mode = "eager"
    check: str = "layers"


DEFECTS: dict[str, Defect] = {}


def _defect(name: str, **where: Any) -> Callable[[Plant], Plant]:
    def enter(plant: Plant) -> Plant:
        DEFECTS[name] = Defect(plant, **where)
        return plant

    return enter


def _change(patch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., Any]) -> None:
    """Put `change(original, self, ...)` in the place of a method."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args, **kwargs: change(original, self, *args, **kwargs))


def _tables(patch: pytest.MonkeyPatch, *, slots: int = 0, window: int = 0) -> None:
    """Make sliding layers' tables larger by so many slots, and their windows wider."""

    def make(original: Any, table: SlotTable, count: int, width: int | None, *rest: Any) -> None:
        original(table, *((count, None) if width is None else (count + slots, width + window)), *rest)

    _change(patch, SlotTable, "__init__", make)


def _mask(patch: pytest.MonkeyPatch, seen: Callable[[SlotTable, Tensor, Tensor], Tensor]) -> None:
    """Give masks by `seen(table, held [1, visible], asking [n, 1])`."""

    def place(original: Any, table: SlotTable, positions: Tensor, visible: int) -> Tensor:
        original(table, positions, visible)
        return seen(table, table.positions[None, table.first : table.last], positions[:, None])[None, None]

    _change(patch, SlotTable, "place", place)


def _seen(table: SlotTable, held: Tensor, asking: Tensor) -> Tensor:
    behind = (held >= 0) & (held <= asking)
    return behind if table.window is None else behind & (held > asking - table.window)


def _writes(patch: pytest.MonkeyPatch, slot: Callable[[SlotTable, Tensor], Tensor]) -> None:
    """Write keys and values to other slots than the table says."""

    def place(original: Any, table: SlotTable, positions: Tensor, visible: int) -> Tensor:
        mask: Tensor = original(table, positions, visible)
        table.write = slot(table, positions) % table.slots
        return mask

    _change(patch, SlotTable, "place", place)


@_defect("window one too wide")
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, window=1)


@_defect("window one too wide, by the token that it must not reach", check="outside", family="mistral")
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, window=1)


@_defect("window one too narrow")
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, window=-1)


@_defect("window one too narrow, by the last token that it must reach", check="inside", family="mistral")
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, window=-1)


@_defect("ring one slot short", check="slots")  # the one slot of window + piece that no answer needs
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, slots=-1)


@_defect("ring one slot shorter than a piece and its window need")
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, slots=-2)


@_defect("ring a whole piece short", family="mistral")
def _(patch: pytest.MonkeyPatch) -> None:
    _tables(patch, slots=-PIECE)


@_defect("wrong slot")
def _(patch: pytest.MonkeyPatch) -> None:
    _writes(patch, lambda table, positions: positions + 1)


@_defect("slots shifted by one after a wrap")
def _(patch: pytest.MonkeyPatch) -> None:
    _writes(patch, lambda table, positions: positions + positions // table.slots)


@_defect("slots shifted by one after the second wrap")
def _(patch: pytest.MonkeyPatch) -> None:
    _writes(patch, lambda table, positions: positions + (positions >= 2 * table.slots).long())


@_defect("the last slot never written")
def _(patch: pytest.MonkeyPatch) -> None:
    _writes(patch, lambda table, positions: (positions % table.slots).clamp(max=table.slots - 2))


@_defect("stale slot after a wrap", family="mistral")
def _(patch: pytest.MonkeyPatch) -> None:
    def update(original: Any, layer: RingLayer, keys: Tensor, values: Tensor) -> Any:
        old = layer.keys[:, :, 0].clone() if layer.is_initialized else None
        pair = original(layer, keys, values)
        if old is not None and layer.table.positions[0] >= layer.table.slots:
            layer.keys[:, :, 0] = old
        return pair

    _change(patch, RingLayer, "update", update)


@_defect("a piece sees its own later tokens")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: _seen(table, held, asking) | (held > asking))


@_defect("a step sees the padding of the last piece", mode="compile")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: _seen(table, held, asking) | ((held > asking) & (len(asking) == 1)))


@_defect("a token does not see itself")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: _seen(table, held, asking) & ((held < asking) | (asking == 0)))


@_defect("the first token is lost", family="llama")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: _seen(table, held, asking) & ((held > 0) | (asking == 0)))


@_defect("full layers look back a window only")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: _seen(table, held, asking) & (held > asking - WINDOW))


@_defect("sliding layers look back over everything", family="gemma4")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: (held >= 0) & (held <= asking))


@_defect("the masks of full and sliding layers exchanged")
def _(patch: pytest.MonkeyPatch) -> None:
    def place(original: Any, ring_cache: RingCache, positions: Tensor, visible: int) -> dict[str, Tensor]:
        masks = original(ring_cache, positions, visible)
        full, sliding = masks["full_attention"], masks["sliding_attention"]
        if full.shape != sliding.shape:  # as long as the ring has not wrapped, nothing else would notice
            return {"full_attention": full, "sliding_attention": sliding}
        return {"full_attention": sliding, "sliding_attention": full}

    _change(patch, RingCache, "place", place)


@_defect("one visible slot too few", family="llama")
def _(patch: pytest.MonkeyPatch) -> None:
    _change(patch, SlotTable, "place", lambda original, table, at, visible: original(table, at, max(visible - 1, 1)))


@_defect("padding written over real tokens", mode="compile")
def _(patch: pytest.MonkeyPatch) -> None:
    def piece(original: Any, programs: Programs, ids: Tensor, positions: Tensor, end: int) -> None:
        padding = ids.flip(0).cumsum(0).flip(0) == 0  # nothing but zeros from here on
        original(programs, ids, torch.where(padding, positions[:1], positions), end)

    _change(patch, Programs, "piece", piece)


@_defect("padding put before the last piece", mode="compile")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring, "pad", lambda piece, sides: pad(piece, sides[::-1]))


def _rotary(patch: pytest.MonkeyPatch, at: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Rotate by `at(positions, ids)` instead of the positions; slots and masks stay right."""

    def inputs(original: Any, programs: Programs, ids: Tensor, positions: Tensor, visible: int) -> Any:
        return original(programs, ids, positions, visible) | {"position_ids": at(positions, ids)[None]}

    _change(patch, Programs, "_inputs", inputs)


@_defect("wrong rotary positions in the last piece")
def _(patch: pytest.MonkeyPatch) -> None:
    _rotary(patch, lambda positions, ids: positions + (1 < len(ids) < PIECE))


@_defect("rotary positions start again at every piece")
def _(patch: pytest.MonkeyPatch) -> None:
    _rotary(patch, lambda positions, ids: positions - positions[0] if len(ids) > 1 else positions)


@_defect("rotary positions kept in bf16", family="llama")
def _(patch: pytest.MonkeyPatch) -> None:
    _rotary(patch, lambda positions, ids: positions.bfloat16().long())


@_defect("positions off by one in decode")
def _(patch: pytest.MonkeyPatch) -> None:
    def decode(original: Any, engine: RingEngine, programs: Programs, token: Tensor, position: int, count: int) -> Any:
        return original(engine, programs, token, position + 1, count)

    _change(patch, RingEngine, "decode", decode)


@_defect("positions that stand still in decode", family="mistral")
def _(patch: pytest.MonkeyPatch) -> None:
    def decode(original: Any, engine: RingEngine, programs: Programs, token: Tensor, position: int, count: int) -> Any:
        for _ in range(count):
            token = next(original(engine, programs, token, position, 1))
            yield token

    _change(patch, RingEngine, "decode", decode)


@_defect("the last token of each piece is lost")
def _(patch: pytest.MonkeyPatch) -> None:
    def piece(original: Any, programs: Programs, ids: Tensor, positions: Tensor, end: int) -> None:
        kept = slice(-1 if len(ids) == PIECE else None)
        original(programs, ids[kept], positions[kept], end)

    _change(patch, Programs, "piece", piece)


@_defect("a last piece of one token is lost")
def _(patch: pytest.MonkeyPatch) -> None:
    def piece(original: Any, programs: Programs, ids: Tensor, positions: Tensor, end: int) -> None:
        if len(ids) > 1:
            original(programs, ids, positions, end)

    _change(patch, Programs, "piece", piece)


@_defect("the last piece is read again at shifted positions")
def _(patch: pytest.MonkeyPatch) -> None:
    def fill(original: Any, engine: RingEngine, programs: Programs, ids: Tensor, *on_read: Any) -> None:
        original(engine, programs, ids, *on_read)
        if len(ids) > PIECE:
            programs.piece(ids[-PIECE:], torch.arange(len(ids) - PIECE, len(ids)) - 1, len(ids))

    _change(patch, RingEngine, "fill", fill)


@_defect("keys stored, values not")
def _(patch: pytest.MonkeyPatch) -> None:
    def update(original: Any, layer: RingLayer, keys: Tensor, values: Tensor) -> Any:
        return original(layer, keys, torch.zeros_like(values))

    _change(patch, RingLayer, "update", update)


@_defect("values of another layer")
def _(patch: pytest.MonkeyPatch) -> None:
    def update(original: Any, ring_cache: RingCache, keys: Tensor, values: Tensor, layer: int, **kwargs: Any) -> Any:
        pair = original(ring_cache, keys, values, layer, **kwargs)
        return (pair[0], ring_cache.layers[0].values[:, :, : pair[0].shape[2]]) if layer == 1 else pair

    _change(patch, RingCache, "update", update)


@_defect("shared layers read another layer", family="gemma4")
def _(patch: pytest.MonkeyPatch) -> None:
    def forward(original: Any, attention: Any, *args: Any, **kwargs: Any) -> Any:
        ring_cache, shared = kwargs.get("cache"), kwargs["shared_kv_states"]
        if attention.is_kv_shared_layer and isinstance(ring_cache, RingCache) and attention.is_sliding:
            first = ring_cache.layers[0]  # the last that stores is layer 4
            shared[attention.layer_type] = tuple(x[:, :, : first.table.last] for x in (first.keys, first.values))
        return original(attention, *args, **kwargs)

    _change(patch, modeling_gemma4.Gemma4TextAttention, "forward", forward)


def _turn(patch: pytest.MonkeyPatch, sign: int) -> None:
    """Rotate stored keys once more (1), or back (-1)."""

    def place(original: Any, table: SlotTable, positions: Tensor, visible: int) -> Tensor:
        table.asking = positions  # type: ignore[attr-defined]
        mask: Tensor = original(table, positions, visible)
        return mask

    def update(original: Any, layer: RingLayer, keys: Tensor, values: Tensor) -> Any:
        size, positions = keys.shape[-1], layer.table.asking  # type: ignore[attr-defined]
        angles = positions[:, None] / 10_000 ** (torch.arange(0, size, 2) / size)
        angles = torch.cat([angles, angles], -1)[None].to(keys.dtype)
        _, turned = apply_rotary_pos_emb(keys, keys, angles.cos(), sign * angles.sin())
        return original(layer, turned, values)

    _change(patch, SlotTable, "place", place)
    _change(patch, RingLayer, "update", update)


@_defect("keys stored unrotated", family="llama")
def _(patch: pytest.MonkeyPatch) -> None:
    _turn(patch, -1)


@_defect("keys rotated twice", family="llama")
def _(patch: pytest.MonkeyPatch) -> None:
    _turn(patch, 1)


@_defect("cache not cleared between prompts", check="emptied")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RingCache, "clear", lambda ring_cache: None)


@_defect("cleared slots count as holding the first token", mode="compile")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotTable, "clear", lambda table: table.positions.fill_(0))


@_defect("a second prompt sees keys of the first", check="again", mode="compile", family="llama")
def _(patch: pytest.MonkeyPatch) -> None:
    _mask(patch, lambda table, held, asking: _seen(table, held, asking) | (held < 0))


@_defect("a NaN in an empty slot", family="llama", mode="compile")
def _(patch: pytest.MonkeyPatch) -> None:
    def allocate(original: Any, layer: RingLayer, keys: Tensor, values: Tensor) -> None:
        original(layer, keys, values)
        layer.values.fill_(torch.nan)

    _change(patch, RingLayer, "lazy_initialization", allocate)
