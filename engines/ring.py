"""The ring engine: reads a prompt in fixed pieces through a cache of fixed size, then decodes greedily.

The model's forward is transformers' own; only its cache and masks are ours. The same code serves every decoder
of full and sliding attention layers.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from engines.errors import EngineError
from engines.loading import LoadedModel, check_fits, load_config
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request
from engines.ring_cache import PIECE, RingCache, layer_kinds


class RingEngine:
    """Greedy decoding over a `RingCache`, in eager PyTorch."""

    def __init__(self, options: EngineOptions) -> None:
        """Load `options.model`; a kind of layer that the ring cannot hold is refused before the weights are read."""
        self._config = load_config(options)
        layer_kinds(self._config)
        self._loaded = LoadedModel(options)
        self._cache: RingCache | None = None

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return self._loaded.info("ring")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        return self._loaded.encode(text)

    @torch.inference_mode()
    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Read the prompt in pieces of 256 tokens and decode greedily until the answer ends."""
        check_fits(request)
        cache = self._empty_cache(request.context)
        start = time.perf_counter()
        logits = self.read(cache, request.ids, on_read)
        reply = [_greedy(logits)]
        first = time.perf_counter()
        while len(reply) < request.max_new and not self._loaded.ends(reply, request.stop):
            position = len(request.ids) + len(reply) - 1
            reply.append(_greedy(self.step(cache, reply[-1], position)))
        return Completion(
            text=self._loaded.decode(reply),
            ids=reply,
            read_s=first - start,
            decode_s=time.perf_counter() - first,
            cache_bytes=cache.bytes,
        )

    def read(self, cache: RingCache, ids: Sequence[int], on_read: OnRead = lambda _: None) -> Tensor:
        """Read a whole prompt into an empty cache and return the logits `[V]` after its last token."""
        logits = None
        for begin in range(0, len(ids), PIECE):
            end = min(begin + PIECE, len(ids))
            logits = self._forward(cache, ids[begin:end], begin, want_logits=end == len(ids))
            on_read(end - begin)
        if logits is None:
            raise EngineError("the prompt holds no tokens: make the set again with `recall generate`")
        return logits

    def step(self, cache: RingCache, token: int, position: int) -> Tensor:
        """Read one more token at `position` and return the logits `[V]` after it."""
        logits = self._forward(cache, [token], position, want_logits=True)
        assert logits is not None
        return logits

    def _forward(self, cache: RingCache, ids: Sequence[int], begin: int, *, want_logits: bool) -> Tensor | None:
        device, end = self._loaded.device, begin + len(ids)
        positions = torch.arange(begin, end, device=device)
        inputs = {
            "input_ids": torch.tensor([ids], device=device),
            "position_ids": positions[None],
            "attention_mask": cache.place(positions, end),
            "cache": cache,
            "use_cache": True,
        }
        if not want_logits:
            # The vocabulary's matrix is most of a small model's weights: a piece whose logits nobody reads skips it.
            self._loaded.model.base_model(**inputs)
            return None
        logits: Tensor = self._loaded.model(**inputs, logits_to_keep=1).logits[0, -1]
        return logits

    def _empty_cache(self, context: int) -> RingCache:
        if self._cache is None or self._cache.context != context:
            self._cache = None  # freed before the next one is allocated
            self._cache = RingCache(self._config, context, self._loaded.device)
        self._cache.clear()
        return self._cache


def _greedy(logits: Tensor) -> int:
    if bool(torch.isnan(logits).any()):
        raise EngineError("the model gives NaN logits: try --dtype fp32, or check its weights")
    return int(logits.argmax())
