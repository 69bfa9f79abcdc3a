"""Vocabulary tables that stay packed to 4 bits: each use unpacks the rows it needs and keeps nothing.

The format is compressed-tensors' `pack-quantized`, symmetric, 4 bits, in groups along a row. A table
`[rows, width]` is three tensors: `packed` int32 `[rows, ceil(width / 8)]`, eight levels a word, the lowest four bits
first, each stored as level + 8; `scale` `[rows, groups]`, one factor for width / groups columns; and `shape`, int64
`[2]`, which holds rows and width. A weight is level * scale in fp32, rounded once to the model's type. A Gemma
multiplies what it looks up by a constant of its own, which is not in the table.
"""

from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

# Rows that a product with the whole table unpacks at a time. At a width of 1536 blocks of 4096 take a fifth of the
# time of blocks of 16,384 on a CPU, whose memory is new each time. A compiler writes the loop out and fuses what is
# in a block: there few large ones (100 MB in bf16 at that width) save compile time.
BLOCK_ROWS = 4096
COMPILED_BLOCK_ROWS = 32_768

_LEVELS_A_WORD = 8


def unpack(packed: Tensor, scale: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return the weights `[..., width]` of packed rows `[..., ceil(width / 8)]` with scales `[..., groups]`."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    levels = ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2)[..., :width] - 8
    groups = levels.reshape(*scale.shape, -1).to(torch.float32)
    return (groups * scale.unsqueeze(-1).to(torch.float32)).flatten(-2).to(dtype)


class PackedTable(nn.Module):
    """A table `[rows, width]` in packed form, to be filled by a loader."""

    packed: Tensor
    scale: Tensor
    shape: Tensor

    def __init__(self, rows: int, width: int, groups: int, scale_dtype: torch.dtype, dtype: torch.dtype) -> None:
        """Make room for a table whose weights are of type `dtype` once unpacked."""
        super().__init__()
        self.rows = rows
        self.width = width
        self.dtype = dtype
        # Buffers: transformers takes the type of a model's first floating parameter for the model's.
        self.register_buffer("packed", torch.empty(rows, ceil(width / _LEVELS_A_WORD), dtype=torch.int32))
        self.register_buffer("scale", torch.empty(rows, groups, dtype=scale_dtype))
        self.register_buffer("shape", torch.empty(2, dtype=torch.int64))

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the rows `[..., width]` of ids `[...]`."""
        return unpack(self.packed[ids], self.scale[ids], self.width, self.dtype)

    def product(self, hidden: Tensor) -> Tensor:
        """Return the product `[..., rows]` of hidden states `[..., width]` with every row, unpacked block by block."""
        rows = COMPILED_BLOCK_ROWS if torch.compiler.is_compiling() else BLOCK_ROWS
        products = []
        for begin in range(0, self.rows, rows):
            block = slice(begin, begin + rows)
            weights = unpack(self.packed[block], self.scale[block], self.width, self.dtype)
            products.append(functional.linear(hidden, weights))
        return torch.cat(products, dim=-1)


class PackedEmbedding(PackedTable):
    """What stands for an embedding: looks its ids' rows up and multiplies them by `embed_scale`."""

    def __init__(
        self,
        rows: int,
        width: int,
        groups: int,
        scale_dtype: torch.dtype,
        dtype: torch.dtype,
        embed_scale: float = 1.0,
    ) -> None:
        """Make room for a table; `embed_scale` is rounded to `dtype` first, as the model's own embedding rounds it."""
        super().__init__(rows, width, groups, scale_dtype, dtype)
        # On the CPU whatever the default device: a model is built on the meta device, where no value can be read.
        self.embed_scale = torch.tensor(embed_scale, dtype=torch.float32, device="cpu").to(dtype).item()

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings `[..., width]` of ids `[...]`."""
        return self.look_up(ids) * self.embed_scale


class PackedHead(PackedTable):
    """What stands for a language model's head with a table of its own."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits `[..., rows]` of hidden states `[..., width]`."""
        return self.product(hidden)


class TiedHead(nn.Module):
    """What stands for a language model's head that shares the packed table of an embedding."""

    def __init__(self, table: PackedTable) -> None:
        """Read `table`, which stays the embedding's."""
        super().__init__()
        # In a tuple it is no submodule: its tensors appear once in the model's state, under the embedding's name.
        self._table = (table,)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits `[..., rows]` of hidden states `[..., width]`."""
        return self._table[0].product(hidden)
