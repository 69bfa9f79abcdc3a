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
Pair = tuple[Tensor, Tensor]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def layer_kinds(config: Any) -> list[str]:
    """Return for each layer of a text model's configuration whether its attention is full or sliding.

    Raises:
        EngineError: naming the kind of layer that a ring cannot hold.
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None) or [_SLIDING if window else _FULL] * config.num_hidden_layers
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
    """Which position each slot of one kind of layer holds: one table for all layers of that kind."""

    def __init__(self, slots: int, window: int | None, device: torch.device) -> None:
        """Make an empty table of `slots` slots, for layers that look back `window` positions (None: all)."""
        self.slots = slots
        self.window = window
        self.positions = torch.full((slots,), -1, device=device)  # [slots]; -1: empty
        self.write: Tensor  # [n]: the slots that the positions being read go to
        self.visible = 0  # slots from the first on that are attended to: all that may hold something

    def clear(self) -> None:
        """Empty every slot."""
        self.positions.fill_(-1)

    def place(self, positions: Tensor, visible: int) -> Tensor:
        """Give positions `[n]` their slots and return their mask, `[1, 1, n, visible]`.

        Positions are read in rising order, so those below `visible` lie in the first `visible` slots.
        """
        self.write = positions % self.slots
        self.positions.index_copy_(0, self.write, positions)
        self.visible = min(visible, self.slots)
        held, asking = self.positions[None, : self.visible], positions[:, None]
        mask = (held >= 0) & (held <= asking)
        if self.window is not None:
            mask &= held > asking - self.window
        return mask[None, None]


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
        self.keys = key_states.new_zeros(batch, heads, self.table.slots, size)
        self.values = value_states.new_zeros(batch, heads, self.table.slots, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Pair:
        """Store keys and values `[1, H, n, D]` at the placed slots; return those to attend to, `[1, H, visible, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.table.write, key_states)
        self.values.index_copy_(2, self.table.write, value_states)
        return self.keys[:, :, : self.table.visible], self.values[:, :, : self.table.visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys are attended to, and the first one's place (transformers' cache interface)."""
        return self.table.visible, 0

    def get_seq_length(self) -> int:
        """Return how many slots are attended to (transformers' cache interface)."""
        return self.table.visible

    def get_max_length(self) -> int:
        """Return the number of slots (transformers' cache interface)."""
        return self.table.slots

    @property
    def bytes(self) -> int:
        """Bytes of keys and values; 0 for a layer that stores nothing because it uses another one's."""
        return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0


class RingCache(Cache):
    """The cache of a whole model for one context size, one sequence at a time."""

    def __init__(self, config: Any, context: int, device: torch.device) -> None:
        """Make an empty cache that holds `context` positions for the model of `config`."""
        kinds = layer_kinds(config)
        # Whole pieces: a last piece that is padded to its full length has slots of its own.
        self.slots = -(-context // PIECE) * PIECE
        self.context = context
        self.device = device
        self.storing_layers = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", 0) or 0)
        window = {_FULL: None, _SLIDING: getattr(config, "sliding_window", None)}
        slots = {_FULL: self.slots, _SLIDING: min(self.slots, (window[_SLIDING] or 0) + PIECE)}
        self.tables = {kind: SlotTable(slots[kind], window[kind], device) for kind in set(kinds)}
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
        masks = {kind: table.place(positions, visible) for kind, table in self.tables.items()}
        return masks if self._masks_by_kind else next(iter(masks.values()))

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
