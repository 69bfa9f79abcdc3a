"""What a model thought of at each place of its answer: the likeliest tokens there, with their log-probabilities."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.errors import EngineError
from engines.protocol import TOP, Choice

NAN_LOGITS = "the model gives NaN logits: try --dtype fp32, or check its weights"


def likeliest(logits: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens after logits `[n, V]`, the chosen `token` `[n]` first, and their log-probabilities.

    Both are `[n, 1 + min(TOP, V)]`: the chosen token, then the `TOP` likeliest, itself among them.
    """
    logits = logits.float()
    top = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
    ids = torch.cat([token[:, None], top.indices], dim=-1)
    values = torch.cat([logits.gather(-1, token[:, None].clamp(min=0)), top.values], dim=-1)
    return ids, values - logits.logsumexp(-1, keepdim=True)


def choices_of(ids: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> list[Choice]:
    """Return the choices that rows of `likeliest` stand for; tokens that the model rules out are none of the likeliest.

    Raises:
        EngineError: when a chosen token has no probability: a logit was NaN or infinite.
    """
    choices = []
    for (chosen, *others), (value, *rest) in zip(ids, logprobs, strict=True):
        if not isfinite(value):
            raise EngineError(NAN_LOGITS)
        top = [(token, logprob) for token, logprob in zip(others, rest, strict=True) if isfinite(logprob)]
        choices.append(Choice(chosen, value, top))
    return choices


def usable(logits: Tensor) -> NDArray[np.float32]:
    """Return logits `[n, V]` for the world outside PyTorch; raise `EngineError` where one of them is NaN."""
    if bool(logits.isnan().any()):
        raise EngineError(NAN_LOGITS)
    values: NDArray[np.float32] = logits.float().cpu().numpy()
    return values
