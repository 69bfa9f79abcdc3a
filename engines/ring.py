"""The ring engine: reads a prompt in fixed pieces through a cache of fixed size, then decodes greedily.

The model's forward is transformers' own; only its cache and masks are ours. The same code serves every decoder
of full and sliding attention layers.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from engines.devices import compiler
from engines.errors import EngineError
from engines.loading import LoadedModel, check_fits, load_config
from engines.programs import NAN_TOKEN, Programs
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request, Setting
from engines.ring_cache import PIECE, RingCache, layer_kinds


class RingEngine:
    """Greedy decoding over a `RingCache`."""

    def __init__(self, options: EngineOptions) -> None:
        """Load `options.model`; a kind of layer that the ring cannot hold is refused before the weights are read."""
        self.config = load_config(options)
        layer_kinds(self.config)
        self._backend = compiler(options)
        # Reading a token back makes the device wait. Where that costs nothing, an answer ends as soon as it is over.
        self._stream = options.mode == "eager" if options.stream is None else options.stream
        # A compiler, and TorchTPU in every mode, makes a program for each new shape: there all shapes are fixed.
        fixed = self._backend is not None or options.device.startswith("tpu")
        self._sizes = options.sizes if fixed else None
        self._settings: dict[str, Setting] = {"mode": options.mode, "stream": self._stream, "sizes": self._sizes}
        self.loaded = LoadedModel(options)
        self._cache: RingCache | None = None
        self._programs: Programs | None = None

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return self.loaded.info("ring", self._settings)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        return self.loaded.encode(text)

    @torch.inference_mode()
    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Read the prompt in pieces of 256 tokens and decode greedily until the answer ends."""
        check_fits(request)
        cache, programs = self.prepare(request.context)
        start = time.perf_counter()
        token = self.read(programs, request.ids, on_read)
        reply = [_checked(token)]
        first = time.perf_counter()
        steps = self.decode(programs, token, len(request.ids), request.max_new - 1)
        if self._stream:
            while not self.loaded.ends(reply, request.stop) and len(reply) < request.max_new:
                reply.append(_checked(next(steps)))
            decoded = len(reply) - 1
        else:
            tokens = list(steps)
            decoded = len(tokens)
            if tokens:
                reply = self._until_end([*reply, *torch.cat(tokens).tolist()], request.stop)
        return Completion(
            text=self.loaded.decode(reply),
            ids=reply,
            read_s=first - start,
            decode_s=time.perf_counter() - first,
            decoded=decoded,
            cache_bytes=cache.bytes,
            graphs=programs.graphs,
            breaks=programs.breaks,
        )

    def prepare(self, context: int) -> tuple[RingCache, Programs]:
        """Return an empty cache that holds `context` tokens, and its programs; compiled ones are compiled here."""
        if self._cache is None or self._programs is None or self._cache.context != context:
            self._cache = self._programs = None  # freed before the next ones are allocated
            self._cache = RingCache(self.config, context, self.loaded.device)
            self._programs = Programs(self.loaded.model, self._cache, self._backend, self._sizes)
            if self._backend is not None:
                self._programs.compile_all()
        self._cache.clear()
        return self._cache, self._programs

    def read(self, programs: Programs, ids: Sequence[int], on_read: OnRead = lambda _: None) -> Tensor:
        """Read a whole prompt into the empty cache and return the token `[1]` that follows it."""
        if not ids:
            raise EngineError("the prompt holds no tokens: make the set again with `recall generate`")
        prompt = torch.tensor(list(ids), device=self.loaded.device)
        last = len(ids) - 1
        self.fill(programs, prompt[:last], on_read)
        token = programs.step(prompt[last:], torch.tensor([last], device=self.loaded.device), last + 1)
        on_read(1)
        return token

    def fill(self, programs: Programs, ids: Tensor, on_read: OnRead = lambda _: None) -> None:
        """Read ids `[n]` into the empty cache, piece by piece."""
        for begin in range(0, len(ids), PIECE):
            piece = ids[begin : begin + PIECE]
            real = len(piece)
            if self._sizes is not None:
                # Padding lies behind every real token: the mask hides it from them, and each later token is written
                # over it before it would be seen.
                piece = pad(piece, (0, PIECE - len(piece)))
            end = begin + len(piece)
            programs.piece(piece, torch.arange(begin, end, device=self.loaded.device), end)
            on_read(real)

    def decode(self, programs: Programs, token: Tensor, position: int, count: int) -> Iterator[Tensor]:
        """Yield `count` more tokens `[1]` after `token`, which stands at `position`; nothing is read back."""
        at = torch.tensor([position], device=self.loaded.device)
        for end in range(position + 1, position + 1 + count):
            token = programs.step(token, at, end)
            at = at + 1
            yield token

    def _until_end(self, reply: list[int], stop: str | None) -> list[int]:
        """Return a reply up to its end; what was decoded after it is nobody's answer."""
        for length in range(1, len(reply) + 1):
            _check_id(reply[length - 1])
            if self.loaded.ends(reply[:length], stop):
                return reply[:length]
        return reply


def _checked(token: Tensor) -> int:
    number = int(token)
    _check_id(number)
    return number


def _check_id(number: int) -> None:
    if number == NAN_TOKEN:
        raise EngineError("the model gives NaN logits: try --dtype fp32, or check its weights")
