"""A KV cache of fixed size: a ring of slots for sliding layers, a slot for every position for full ones.

Position p of a layer lies in slot `p % slots`. Keys are rotated before they are stored, so the order of the slots
does not matter to attention; a table of the positions that the slots hold gives the mask. A sliding layer has
window + piece slots: writing a piece of the prompt never overwrites a key which that piece still needs.
Plugs into transformers' own model code as its cache and its ready attention masks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from engines.errors import EngineError

PIECE = 256
TRUNK = 0  # no branch: seen by every branch
Pair = tuple[Tensor, Tensor]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def layer_kinds(config: Any) -> list[str]:
    """Return for each layer of a text model's configuration whether its attention is full or sliding.

    Raises:
        EngineError: naming the kind of layer that a ring cannot hold, and where there is no layer.
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None) or [_SLIDING if window else _FULL] * config.num_hidden_layers
    if not kinds:
        raise EngineError(f"a {config.model_type} without layers cannot be run; check num_hidden_layers in config.json")
    other = sorted(set(kinds) - {_FULL, _SLIDING})
    if other:
        raise EngineError(
            f"the ring cannot hold {', '.join(other)} layers ({config.model_type}), only full and sliding attention; "
            "use --engine hf"
        )
    return list(kinds)


class Filled(Exception):  # noqa: N818 - no error: the forward has done all it was wanted for
    """Raised by a cache that is only being filled, when the last layer that stores something has stored it."""


class SlotTable:
    """Which position each slot of one kind of layer holds: one table for all layers of that kind.

    In front of the slots there may be spare ones, for branches: texts that go on from what has been read, side by
    side, and do not see each other. Spare slots are given out from the last to the first, so that those in use and
    the slots behind them lie together.
    """

    def __init__(self, slots: int, window: int | None, device: torch.device, spare: int = 0) -> None:
        """Make an empty table of `slots` slots, for layers that look back `window` positions (None: all)."""
        self.slots = slots
        self.window = window
        self.spare = spare
        self.positions = torch.full((spare + slots,), -1, device=device)  # -1: empty
        self.branches = torch.full((spare + slots,), TRUNK, device=device)
        self.write: Tensor  # [n]: the slots that the positions being read go to
        self.first = spare  # slots from `first` to `last` are attended to: all that may hold something
        self.last = spare
        self._free = spare  # spare slots from here on are in use

    def clear(self) -> None:
        """Empty every slot."""
        self.positions.fill_(-1)
        self._free = self.spare

    def clear_branches(self) -> None:
        """Empty the spare slots."""
        self.positions[: self.spare] = -1
        self._free = self.spare

    def place(self, positions: Tensor, visible: int) -> Tensor:
        """Give positions `[n]` their slots and return their mask, `[1, 1, n, visible]`.

        Positions are read in rising order, so those below `visible` lie in the first `visible` slots.
        """
        self.write = positions % self.slots + self.spare
        self.positions.index_copy_(0, self.write, positions)
        self.first, self.last = self.spare, self.spare + min(visible, self.slots)
        return self._reach(positions)[None, None]

    def place_branches(self, positions: Tensor, branches: Tensor, visible: int) -> Tensor:
        """Give positions `[n]` of branches `[n]` spare slots and return their mask, `[1, 1, n, slots attended to]`.

        A token sees what was read before the branches, what `TRUNK` holds among them, and its own branch.
        """
        begin = self._free - len(positions)
        self.write = torch.arange(begin, self._free, device=positions.device)
        self.positions[begin : self._free] = positions
        self.branches[begin : self._free] = branches
        self._free = begin
        self.first, self.last = begin, self.spare + min(visible, self.slots)
        of = self.branches[None, begin : self.last]
        return (self._reach(positions) & ((of == TRUNK) | (of == branches[:, None])))[None, None]

    def _reach(self, positions: Tensor) -> Tensor:
        """Return which of the slots attended to hold what positions `[n]` look back to, `[n, slots attended to]`."""
        held, asking = self.positions[None, self.first : self.last], positions[:, None]
        mask = (held >= 0) & (held <= asking)
        if self.window is not None:
            mask &= held > asking - self.window
        return mask


class RingLayer(CacheLayerMixin):
    """Keys and values of one layer, `[1, H, slots, D]` each, allocated when the layer first stores something."""

    def __init__(self, table: SlotTable) -> None:
        """Make a layer whose slots `table` gives out."""
        super().__init__()
        self.table = table
        self.is_sliding = table.window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots: zeros, since attention weighs an empty slot with zero and zero times NaN is NaN."""
        batch, heads, _, size = key_states.shape
        slots = self.table.spare + self.table.slots
        self.keys = key_states.new_zeros(batch, heads, slots, size)
        self.values = value_states.new_zeros(batch, heads, slots, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Pair:
        """Store keys and values `[1, H, n, D]` at the placed slots; return those to attend to, `[1, H, slots, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.table.write, key_states)
        self.values.index_copy_(2, self.table.write, value_states)
        seen = slice(self.table.first, self.table.last)
        return self.keys[:, :, seen], self.values[:, :, seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys are attended to, and the first one's place (transformers' cache interface)."""
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        """Return how many slots are attended to (transformers' cache interface)."""
        return self.table.last - self.table.first

    def get_max_length(self) -> int:
        """Return the number of slots (transformers' cache interface)."""
        return self.table.slots

    @property
    def bytes(self) -> int:
        """Bytes of keys and values; 0 for a layer that stores nothing because it uses another one's."""
        return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0


class RingCache(Cache):
    """The cache of a whole model for one context size, one sequence at a time."""

    def __init__(self, config: Any, context: int, device: torch.device, spare: int = 0) -> None:
        """Make an empty cache that holds `context` positions, and `spare` for branches, for the model of `config`."""
        kinds = layer_kinds(config)
        # Whole pieces: a last piece that is padded to its full length has slots of its own.
        self.slots = -(-context // PIECE) * PIECE
        self.context = context
        self.device = device
        self.storing_layers = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", 0) or 0)
        window = {_FULL: None, _SLIDING: getattr(config, "sliding_window", None)}
        slots = {_FULL: self.slots, _SLIDING: min(self.slots, (window[_SLIDING] or 0) + PIECE)}
        self.spare = spare
        self.tables = {kind: SlotTable(slots[kind], window[kind], device, spare) for kind in set(kinds)}
        super().__init__(layers=[RingLayer(self.tables[kind]) for kind in kinds])
        self._filling = False
        # What transformers makes itself in `create_masks_for_generate`: a mask a kind where a configuration
        # names its layers' kinds, one mask where it does not.
        self._masks_by_kind = getattr(config, "layer_types", None) is not None

    def clear(self) -> None:
        """Forget everything read so far."""
        for table in self.tables.values():
            table.clear()

    def place(self, positions: Tensor, visible: int) -> dict[str, Tensor] | Tensor:
        """Give positions `[n]` their slots in every layer; return the attention mask for the model's forward.

        `visible` is a number above all positions read so far: slots from there on are not attended to.
        """
        return self._masks({kind: table.place(positions, visible) for kind, table in self.tables.items()})

    def place_branches(self, positions: Tensor, branches: Tensor, visible: int) -> dict[str, Tensor] | Tensor:
        """Give positions `[n]` of branches `[n]` spare slots in every layer; return the attention mask."""
        return self._masks(
            {kind: table.place_branches(positions, branches, visible) for kind, table in self.tables.items()}
        )

    def clear_branches(self) -> None:
        """Forget all branches: what was read before them is as it was."""
        for table in self.tables.values():
            table.clear_branches()

    def _masks(self, masks: dict[str, Tensor]) -> dict[str, Tensor] | Tensor:
        return masks if self._masks_by_kind else next(iter(masks.values()))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put back at the end what rings and slot tables hold now.

        A full layer's slots need no copy: what is written into them behind a position is written over when that
        position is read again.
        """
        rings = [layer for layer in self.layers if layer.is_sliding and layer.is_initialized]
        held = [(layer.keys.clone(), layer.values.clone()) for layer in rings]
        positions = [table.positions.clone() for table in self.tables.values()]
        try:
            yield
        finally:
            for layer, (keys, values) in zip(rings, held, strict=True):
                layer.keys.copy_(keys)
                layer.values.copy_(values)
            for table, before in zip(self.tables.values(), positions, strict=True):
                table.positions.copy_(before)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """While open, break a forward off with `Filled` behind the last keys and values that it stores."""
        self._filling = True
        try:
            yield
        finally:
            self._filling = False

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Pair:
        """Store and return what `RingLayer.update` does, for layer `layer_idx`."""
        pair: Pair = self.layers[layer_idx].update(key_states, value_states)
        if self._filling and layer_idx == self.storing_layers - 1 and not torch.compiler.is_compiling():
            raise Filled
        return pair

    @property
    def bytes(self) -> int:
        """Bytes of keys and values in all layers."""
        return sum(layer.bytes for layer in self.layers)
