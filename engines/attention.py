"""Attention written out in plain PyTorch, for compilers that lower the built-in one to a kernel of their own.

TorchTPU turns `scaled_dot_product_attention` into a TPU kernel, which takes neither our masks at every size nor any
other plugin; products and a softmax it compiles like everything else.
"""

from typing import Any

import torch
from torch import Tensor

PLAIN_ATTENTION = "plain_attention"


def plain_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend, as transformers' attention functions do; the softmax is computed in fp32.

    Args:
        module: the attention layer (unused).
        query: `[B, Hq, n, D]`.
        key: `[B, H, S, D]`, where H divides Hq.
        value: `[B, H, S, D]`.
        attention_mask: `[B, 1, n, S]`, True where a query sees a key; None: everywhere.
        scaling: of the scores; None: one over the root of D.
        softcap: bound of the scores, as tanh(score / softcap) * softcap; None: unbounded.

    Returns:
        `[B, n, Hq, D]`, and None where others return their weights.
    """
    batch, heads, length, size = query.shape
    groups = query.reshape(batch, key.shape[1], -1, length, size)
    scores = torch.einsum("bhgnd,bhsd->bhgns", groups, key).float() * (scaling or size**-0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask[:, :, None], float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    mixed = torch.einsum("bhgns,bhsd->bhgnd", weights, value)
    return mixed.reshape(batch, heads, length, -1).transpose(1, 2), None
