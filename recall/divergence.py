"""Measures how far two engines' next-token distributions lie apart on the same ids, place by place.

Logits come in as float32 rows; all arithmetic is float64, one place at a time. Divergences are in nats.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines import EngineError, LogitEngine
from generators import Prompt
from recall.errors import RecallError
from recall.intervals import wilson
from recall.scoring import ids_of

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Place:
    """What two engines think of one place of a prompt.

    Attributes:
        prompt_id: the prompt.
        position: of the id that was read last, from 0.
        kl: KL(A||B) of the distributions of the id that comes next.
        same_top: whether both find the same id likeliest.
        logit_difference: the largest difference of two logits, the row's shift taken away.
    """

    prompt_id: str
    position: int
    kl: float
    same_top: bool
    logit_difference: float


@dataclass(frozen=True)
class Summary:
    """What the places of a run come to.

    Attributes:
        places: how many there are.
        mean_kl: of KL(A||B).
        standard_error: of that mean, the places taken as independent of each other; None for a single one.
        percentiles: of KL(A||B), with linear interpolation.
        largest: the place with the largest KL(A||B).
        same_top: places where both find the same id likeliest.
        same_top_interval: Wilson's 95% interval of their share, the places taken as independent again.
        logit_difference: the largest of all.
    """

    places: int
    mean_kl: float
    standard_error: float | None
    percentiles: dict[int, float]
    largest: Place
    same_top: int
    same_top_interval: tuple[float, float]
    logit_difference: float


def kl_divergence(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Return KL(A||B) = sum p_A (ln p_A - ln p_B) of the softmax of two rows of logits `[V]`, in nats."""
    log_a, log_b = _log_softmax(a), _log_softmax(b)
    # It is never negative; a sum that should be 0 is, by rounding.
    return max(float(np.sum(np.exp(log_a) * (log_a - log_b))), 0.0)


def logit_difference(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Return the largest difference of two rows of logits `[V]`, less their median one: a softmax sees no shift."""
    difference = a.astype(np.float64) - b.astype(np.float64)
    return float(np.abs(difference - np.median(difference)).max())


def compare_logits(prompt_id: str, end: int, a: NDArray[np.floating], b: NDArray[np.floating]) -> list[Place]:
    """Return the places that two sets of logits `[n, V]` are of; the last one is after id `end - 1`.

    Raises:
        RecallError: when they have not the same shape, or are not all finite.
    """
    if a.shape != b.shape:
        raise RecallError(
            f"prompt {prompt_id!r}: the logits of A are {_shape(a)}, those of B {_shape(b)}: give two engines of one "
            "model"
        )
    for name, logits in (("A", a), ("B", b)):
        if not np.isfinite(logits).all():
            raise RecallError(f"prompt {prompt_id!r}: the logits of {name} are not all finite numbers; try dtype=fp32")
    places = zip(range(end - len(a), end), a, b, strict=True)
    return [_place(prompt_id, position, of_a, of_b) for position, of_a, of_b in places]


def diverge(
    a: LogitEngine, b: LogitEngine, prompts: Sequence[Prompt], last: int, context: int | None
) -> Iterator[list[Place]]:
    """Put each prompt to both engines, one after the other, and yield the places of its last `last` ids.

    Args:
        a: the engine whose distribution weighs the differences.
        b: the other one.
        prompts: with their texts.
        last: places of each prompt; a shorter prompt gives all that it has.
        context: tokens that the engines hold; None: each prompt's own.

    Raises:
        RecallError: when an engine makes other ids than the set was made with, or logits that cannot be compared.
        EngineError: naming the engine, when the ids do not fit or it gives no usable logits.
    """
    for prompt in prompts:
        logits = [_logits(name, engine, prompt, last, context) for name, engine in (("A", a), ("B", b))]
        yield compare_logits(prompt.id, prompt.prompt_tokens, *logits)


def check_fit(prompts: Sequence[Prompt], context: int | None) -> None:
    """Raise `RecallError` for a prompt that has more tokens than `context`."""
    for prompt in prompts:
        if context is not None and prompt.prompt_tokens > context:
            raise RecallError(
                f"prompt {prompt.id!r} has {prompt.prompt_tokens} tokens: they do not fit into --context {context}; "
                "give a larger one, or leave the prompt out with --only"
            )


def summarize(places: Sequence[Place]) -> Summary:
    """Return what places come to; there must be one."""
    kl = np.array([place.kl for place in places])
    same_top = sum(place.same_top for place in places)
    return Summary(
        places=len(places),
        mean_kl=float(kl.mean()),
        standard_error=float(kl.std(ddof=1) / len(kl) ** 0.5) if len(kl) > 1 else None,
        percentiles={share: float(np.percentile(kl, share)) for share in PERCENTILES},
        largest=max(places, key=lambda place: place.kl),
        same_top=same_top,
        same_top_interval=wilson(same_top, len(places)),
        logit_difference=max(place.logit_difference for place in places),
    )


def _place(prompt_id: str, position: int, a: NDArray[np.floating], b: NDArray[np.floating]) -> Place:
    same_top = bool(a.argmax() == b.argmax())
    return Place(prompt_id, position, kl_divergence(a, b), same_top, logit_difference(a, b))


def _logits(name: str, engine: LogitEngine, prompt: Prompt, last: int, context: int | None) -> NDArray[np.float32]:
    ids = ids_of(prompt, engine)
    if ids is None:
        raise RecallError(f"{name}: {engine.info.engine} makes no ids of its own; give another engine")
    try:
        return engine.logits(ids, min(last, len(ids)), context or prompt.context)
    except EngineError as error:
        raise EngineError(f"{name}, prompt {prompt.id!r}: {error}") from error


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    normalized: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalized


def _shape(logits: NDArray[np.floating]) -> str:
    return " x ".join(str(size) for size in logits.shape)
