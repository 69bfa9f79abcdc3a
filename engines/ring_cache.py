"""A KV cache of fixed size: a ring of slots for sliding layers, a slot for every position for full ones.

Position p of a layer lies in slot `p % slots`. Keys are rotated before they are stored, so the order of the slots
does not matter to attention; a table of the positions that the slots hold gives the mask. A sliding layer has
window + piece slots: writing a piece of the prompt never overwrites a key which that piece still needs.
Plugs into transformers' own model code as its cache and its ready attention masks.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from engines.errors import EngineError

PIECE = 256

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


class SlotTable:
    """Which position each slot of one kind of layer holds: one table for all layers of that kind."""

    def __init__(self, slots: int, window: int | None, device: torch.device) -> None:
        """Make an empty table of `slots` slots, for layers that look back `window` positions (None: all)."""
        self.slots = slots
        self.window = window
        self.positions = torch.full((slots,), -1, device=device)  # [slots]; -1: empty
        self.write: Tensor  # [n]: the slots that the positions being read go to
        self.filled = 0  # slots from the first on that may hold something; the rest are not attended to

    def clear(self) -> None:
        """Empty every slot."""
        self.positions.fill_(-1)
        self.filled = 0

    def place(self, positions: Tensor, end: int) -> Tensor:
        """Give positions `[n]` their slots and return their mask, `[1, 1, n, filled]`; `end` is one past the last."""
        self.write = positions % self.slots
        self.positions.index_copy_(0, self.write, positions)
        self.filled = max(self.filled, min(end, self.slots))
        held, asking = self.positions[None, : self.filled], positions[:, None]
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

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store keys and values `[1, H, n, D]` at the placed slots; return those to attend to, `[1, H, filled, D]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.table.write, key_states)
        self.values.index_copy_(2, self.table.write, value_states)
        return self.keys[:, :, : self.table.filled], self.values[:, :, : self.table.filled]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys are attended to, and the first one's place (transformers' cache interface)."""
        return self.table.filled, 0

    def get_seq_length(self) -> int:
        """Return how many slots may hold something (transformers' cache interface)."""
        return self.table.filled

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
        slots = {_FULL: context, _SLIDING: min(context, (getattr(config, "sliding_window", 0) or 0) + PIECE)}
        window = {_FULL: None, _SLIDING: getattr(config, "sliding_window", None)}
        self.context = context
        self.tables = {kind: SlotTable(slots[kind], window[kind], device) for kind in set(kinds)}
        super().__init__(layers=[RingLayer(self.tables[kind]) for kind in kinds])
        # What transformers makes itself in `create_masks_for_generate`: a mask a kind where a configuration
        # names its layers' kinds, one mask where it does not.
        self._masks_by_kind = getattr(config, "layer_types", None) is not None

    def clear(self) -> None:
        """Forget everything read so far."""
        for table in self.tables.values():
            table.clear()

    def place(self, positions: Tensor, end: int) -> dict[str, Tensor] | Tensor:
        """Give positions `[n]` their slots in every layer; return the attention mask for the model's forward."""
        masks = {kind: table.place(positions, end) for kind, table in self.tables.items()}
        return masks if self._masks_by_kind else next(iter(masks.values()))

    @property
    def bytes(self) -> int:
        """Bytes of keys and values in all layers."""
        return sum(layer.bytes for layer in self.layers)
