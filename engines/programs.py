"""The two programs of the ring engine: one reads a piece of the prompt, one reads a token and gives the next.

A piece only fills the cache: behind the last layer that stores keys and values nothing is computed, so even the last
token of a prompt goes through the step program. Both take tensors only, so that compiled they serve a prompt of any
length: one graph a program, or, where attention is to cover the filled part of a long context, one graph a program
and size.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from engines.choices import likeliest
from engines.ring_cache import PIECE, Filled, RingCache

# One graph a program: a call that would need another one is an error, not a second compilation.
_ONE_GRAPH: dict[str, Any] = {"recompile_limit": 1, "isolate_recompiles": True}

NAN_TOKEN = -1  # stands for the next token where the logits hold a NaN


class Step(NamedTuple):
    """What the step program gives: the next token `[1]`; and `[1, 1 + TOP]` each, what `likeliest` tells of it."""

    token: Tensor
    ids: Tensor
    logprobs: Tensor


def visible_sizes(slots: int, parts: int) -> list[int]:
    """Return how many slots of a context's `slots` compiled programs attend to: whole pieces, up to `parts` sizes."""
    parts = min(parts, -(-slots // PIECE))  # there are no more different sizes than whole pieces
    sizes = {-(-slots * part // parts // PIECE) * PIECE for part in range(1, parts + 1)}
    return sorted(min(size, slots) for size in sizes)


class Programs:
    """The piece and the step program of one model over one cache."""

    def __init__(self, model: Any, cache: RingCache, backend: str | None, sizes: int | None) -> None:
        """Make the programs.

        Args:
            model: a causal language model of transformers.
            cache: what they read and write.
            backend: of `torch.compile`; None runs them eagerly.
            sizes: how many sizes of the filled part there are, each with programs of its own; 1: the strict two
                programs; None: any size, for a device on which a new shape costs nothing.
        """
        self._model = model
        self._cache = cache
        self._backend = backend
        self._sizes = visible_sizes(cache.slots, sizes) if sizes else []
        self._compiled: dict[tuple[str, int], Callable[..., Any]] = {}
        if backend is not None:
            torch._dynamo.reset()  # so that the compiler's counts are those of these programs alone
            counters.clear()

    def piece(self, ids: Tensor, positions: Tensor, end: int) -> None:
        """Read ids `[n]` at positions `[n]` into the cache; `end` is one past the last position."""
        self._run("piece", self._piece, ids, positions, end)

    def step(self, token: Tensor, position: Tensor, end: int) -> Step:
        """Read one token `[1]` at position `[1]`; return the next one, the most likely."""
        return Step(*self._run("step", self._step, token, position, end))

    @torch.inference_mode()
    def compile_all(self) -> None:
        """Compile every program now, on an empty cache, and leave the cache empty."""
        device = self._cache.device
        # The layers allocate their slots when they first store something, which belongs to no program.
        self._piece(torch.zeros(1, dtype=torch.long, device=device), torch.arange(1, device=device), PIECE)
        for size in self._sizes:
            for count, program in ((PIECE, self.piece), (1, self.step)):
                program(torch.zeros(count, dtype=torch.long, device=device), torch.arange(count, device=device), size)
        self._cache.clear()

    @property
    def graphs(self) -> int | None:
        """How many graphs the compiler has made of the programs so far; None when nothing is compiled."""
        return counters["stats"]["unique_graphs"] if self._backend else None

    @property
    def breaks(self) -> int | None:
        """At how many places the compiler cut a program in two; None when nothing is compiled."""
        return sum(counters["graph_break"].values()) if self._backend else None

    def logits(self, token: Tensor, position: Tensor, visible: int) -> Tensor:
        """Read one token `[1]` at position `[1]`, attending to `visible` slots; return the logits `[V]`."""
        logits: Tensor = self._model(**self._inputs(token, position, visible), logits_to_keep=1).logits[0, -1]
        return logits

    def fill_branches(self, ids: Tensor, positions: Tensor, branches: Tensor, visible: int) -> None:
        """Read ids `[n]` at positions `[n]` of branches `[n]` into spare slots; `visible`: tokens read before them."""
        with suppress(Filled), self._cache.filling():
            self._model.base_model(**self._branch_inputs(ids, positions, branches, visible))

    def step_branches(self, tokens: Tensor, positions: Tensor, branches: Tensor, visible: int) -> Step:
        """Read a token of each branch, `[n]`; return the next ones: a step whose tensors have `n` rows for one."""
        inputs = self._branch_inputs(tokens, positions, branches, visible)
        logits = self._model(**inputs).logits[0]
        following = torch.where(logits.isnan().any(-1), NAN_TOKEN, logits.argmax(-1))
        return Step(following, *likeliest(logits, following))

    def _piece(self, ids: Tensor, positions: Tensor, visible: int) -> None:
        # Eagerly the cache breaks the forward off when it is full; a compiler drops by itself what nobody reads.
        with suppress(Filled), self._cache.filling():
            self._model.base_model(**self._inputs(ids, positions, visible))

    def _step(self, token: Tensor, position: Tensor, visible: int) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.logits(token, position, visible)
        following = torch.where(logits.isnan().any(), NAN_TOKEN, logits.argmax(-1, keepdim=True))
        return (following, *likeliest(logits[None], following))

    def _inputs(self, ids: Tensor, positions: Tensor, visible: int) -> dict[str, Any]:
        return self._masked(ids, positions, self._cache.place(positions, visible))

    def _branch_inputs(self, ids: Tensor, positions: Tensor, branches: Tensor, visible: int) -> dict[str, Any]:
        return self._masked(ids, positions, self._cache.place_branches(positions, branches, visible))

    def _masked(self, ids: Tensor, positions: Tensor, mask: Any) -> dict[str, Any]:
        return {
            "input_ids": ids[None],
            "position_ids": positions[None],
            "attention_mask": mask,
            "cache": self._cache,
            "use_cache": True,
        }

    def _run(self, name: str, program: Callable[..., Any], ids: Tensor, at: Tensor, end: int) -> Any:
        size = next((size for size in self._sizes if size >= end), end)
        if self._backend is None:
            return program(ids, at, size)
        if (name, size) not in self._compiled:

            def of_size(ids: Tensor, at: Tensor) -> Any:
                return program(ids, at, size)

            self._compiled[name, size] = torch.compile(
                of_size, backend=self._backend, fullgraph=True, dynamic=False, **_ONE_GRAPH
            )
        # A copy: where a slice begins in the prompt is part of what a graph is compiled for.
        return self._compiled[name, size](ids.clone(), at)
