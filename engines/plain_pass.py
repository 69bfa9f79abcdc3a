"""What a plain forward pass without a cache gives, whole and with its layers taken apart, and how far it rounds.

It is what a cache is probed against: prompts that end below, on and above every edge at which a cache changes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engines.errors import EngineError
from engines.ring_cache import PIECE, layer_kinds

WRAPS = 3
STEPS = 3  # decoded over an edge: one token before it, one on it, one behind it
DRAWS = 2  # reference passes with other rounding

# Values are rounded to the dtype at eight places between a layer's input and its attention's output (input norm,
# projection to q, k and v, their norm, rotation, scores, probabilities, weighted sum, output projection), and at
# eight more to the layer's end (norms before and after, both sums with the input, gate, up, their product, down).
# A draw moves values at one place. Roundings are independent, so the norms of what they do add as squares do; and the
# difference of two computations holds the roundings of both.
ATTENTION_ROUNDINGS = math.sqrt(2 * 8)
LAYER_ROUNDINGS = math.sqrt(2 * 16)


@dataclass(frozen=True)
class Case:
    """A prompt of `tokens` tokens, then `steps` decoded ones; `where` says which edge that touches."""

    where: str
    tokens: int
    steps: int


def window_of(config: Any) -> int | None:
    """Return how many positions the sliding layers look back; None for a model without any."""
    return config.sliding_window if "sliding_attention" in layer_kinds(config) else None


def default_context(window: int | None) -> int:
    """Return the least context, in whole pieces, in which the ring wraps three times (without a ring: four pieces)."""
    longest = 3 * PIECE if window is None else WRAPS * (window + PIECE)
    return -(-(longest + STEPS) // PIECE) * PIECE


def edges(window: int | None, context: int) -> dict[str, int]:
    """Return the positions at which something changes: the window's end, the first pieces' ends, each wrap."""
    found = {"piece": PIECE, "2nd piece": 2 * PIECE}
    if window is not None:
        ring = window + PIECE
        found |= {"window": window} | {f"wrap {turn}": turn * ring for turn in range(1, context // ring + 1)}
    return {name: edge for name, edge in found.items() if edge + STEPS <= context}


def cases(window: int | None, context: int) -> list[Case]:
    """Return the prompts: one below, on and above every edge; decoded over it; shortest, longest, odd last pieces."""
    found = [Case("first slot", 1, min(STEPS, context - 1))]
    for name, edge in edges(window, context).items():
        found += [
            Case(f"{name} -1", edge - 1, STEPS),
            Case(f"{name} +0", edge, 0),
            Case(f"{name} +1", edge + 1, 0),
        ]
    # The last token of a prompt is read by the step program, so a last piece of 1 is a prompt two longer than a piece.
    found += [Case("last piece 1", PIECE + 2, STEPS), Case("last piece 256", PIECE + 1, STEPS)]
    found += [Case("last slot", context - STEPS, STEPS)]
    return [case for case in found if 1 <= case.tokens <= context - case.steps]


class Taps:
    """Hooks on a model: they can take its layers apart, move their inputs by a rounding, and keep what comes out.

    `following`: the token that every greedy choice is to come out as, so that decoded tokens are known beforehand.
    """

    def __init__(self, model: Any) -> None:
        """Find the decoder layers of `model` (those with a `self_attn`), in their order."""
        self._model = model
        self.layers: list[Any] = [module for module in model.modules() if hasattr(module, "self_attn")]
        if len(self.layers) != model.config.get_text_config().num_hidden_layers:
            raise EngineError(
                f"recall probe finds {len(self.layers)} layers with a self_attn in this model, not the "
                f"{model.config.get_text_config().num_hidden_layers} of its config: it cannot be probed"
            )
        self.kept: dict[int, Tensor] = {}  # [n, hidden] of the latest forward, by layer
        self.following: int | None = None
        self._embedded: Tensor

    @contextmanager
    def open(self, *, apart: bool, move: Callable[[Tensor], Tensor] | None = None) -> Iterator[None]:
        """Set the hooks while open: `apart` gives every layer the embeddings; `move` is done to every layer's input."""

        def enter(number: int) -> Callable[..., tuple[Any, ...]]:
            def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
                hidden = inputs[0]
                if apart:
                    self._embedded = hidden = hidden if number == 0 else self._embedded
                return (hidden if move is None else move(hidden), *inputs[1:])

            return hook

        def leave(number: int) -> Callable[..., None]:
            def hook(_: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
                self.kept[number] = output[0][0]

            return hook

        def choose(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            if self.following is not None:
                output.logits.zero_()[..., self.following] = 1

        handles = [self._model.register_forward_hook(choose)] if apart else []
        for number, layer in enumerate(self.layers):
            handles.append(layer.register_forward_pre_hook(enter(number)))
            if apart:
                handles.append(layer.self_attn.register_forward_hook(leave(number)))
        try:
            yield
        finally:
            self.following = None
            for handle in handles:
                handle.remove()


class Rounding:
    """Another way of rounding: a forward pass whose every layer input is moved by what one rounded product loses.

    A product of `hidden` terms in floating point is the exact product of inputs moved by at most the unit roundoff of
    what is stored and sqrt(hidden) unit roundoffs of the float32 sum, with high probability (Higham and Mary, "A new
    approach to probabilistic rounding error analysis", 2019). Each value is moved that far, up or down at random.
    """

    def __init__(self, hidden: int, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        """Make one draw for layers whose inputs have `hidden` numbers of `dtype`."""
        stored, summed = (float(torch.finfo(kind).eps) / 2 for kind in (dtype, torch.float32))
        self._size = stored + math.sqrt(hidden) * summed
        self._source = torch.Generator(device).manual_seed(seed)

    def __call__(self, values: Tensor) -> Tensor:
        """Return values moved by one rounding each."""
        signs = torch.randint(0, 2, values.shape, generator=self._source, device=values.device) * 2 - 1
        moved: Tensor = values.double() * (1 + self._size * signs)
        return moved.to(values.dtype)


class Reference:
    """What the plain forward pass gives, without a cache, for a model and a context; and how far its rounding goes.

    Computed once and good for every engine over the same weights.
    """

    @torch.inference_mode()
    def __init__(self, model: Any, config: Any, context: int | None = None) -> None:
        """Run the forward passes over `context` random tokens (None: as many as reach each edge)."""
        self.window = window_of(config)
        self.context = default_context(self.window) if context is None else context
        self.cases = cases(self.window, self.context)
        self.kinds = layer_kinds(config)
        self.taps = Taps(model)
        self._model = model
        self.vocabulary: int = config.vocab_size
        source = torch.Generator().manual_seed(0)
        self.ids: list[int] = torch.randint(self.vocabulary, (self.context,), generator=source).tolist()

        self._asked = sorted({case.tokens - 1 for case in self.cases})
        draws = [Rounding(config.hidden_size, model.dtype, model.device, seed) for seed in range(DRAWS)]
        self._logits = self._logits_of(self.ids, self._asked)
        self.logits_tolerance = LAYER_ROUNDINGS * max(
            float((self._logits_of(self.ids, self._asked, draw) - self._logits).abs().max()) for draw in draws
        )
        self.layers = self.layers_of(self.ids)
        moved = torch.stack([(self.layers_of(self.ids, draw) - self.layers).norm(dim=-1) for draw in draws])
        # [layers, n]; no less than the layer's mean, since a draw can miss the direction in which an output moves most.
        mean = moved.square().mean((0, 2)).sqrt()
        self.layers_tolerance = ATTENTION_ROUNDINGS * torch.maximum(moved.amax(0), mean[:, None])

    def logits(self, ids: Sequence[int], count: int) -> Tensor:
        """Return the logits `[count, V]` after each of the last `count` ids."""
        if count == 1 and list(ids) == self.ids[: len(ids)] and len(ids) - 1 in self._asked:
            return self._logits[self._asked.index(len(ids) - 1)][None]
        return self._logits_of(ids, list(range(len(ids) - count, len(ids))))

    @torch.inference_mode()
    def layers_of(self, ids: Sequence[int], move: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return every attention's output for every id, the layers taken apart: `[layers, n, hidden]`."""
        with self.taps.open(apart=True, move=move):
            # The model without its head: asked for logits, Gemma 4 drops the other tokens before its shared layers.
            self._model.base_model(torch.tensor([list(ids)], device=self._model.device), use_cache=False)
        return torch.stack([self.taps.kept[number] for number in range(len(self.taps.layers))]).float()

    @torch.inference_mode()
    def _logits_of(
        self, ids: Sequence[int], positions: list[int], move: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        with self.taps.open(apart=False, move=move):
            device = self._model.device
            keep = torch.tensor(positions, device=device)
            output = self._model(torch.tensor([list(ids)], device=device), use_cache=False, logits_to_keep=keep)
        logits: Tensor = output.logits[0].float()
        return logits
