"""The ring engine: reads a prompt in fixed pieces through a cache of fixed size, then decodes greedily.

The model's forward is transformers' own; only its cache and masks are ours. The same code serves every decoder
of full and sliding attention layers.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from engines.choices import NAN_LOGITS, choices_of, usable
from engines.devices import compiler, enough_memory
from engines.errors import EngineError
from engines.loading import LoadedModel, check_fits, load_config
from engines.programs import NAN_TOKEN, Programs, Step
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request, Setting
from engines.ring_cache import PIECE, RingCache, layer_kinds


class RingEngine:
    """Greedy decoding over a `RingCache`."""

    def __init__(self, options: EngineOptions, loaded: LoadedModel | None = None) -> None:
        """Load `options.model`, unless it is `loaded` already.

        A kind of layer that the ring cannot hold is refused before the weights are read.
        """
        self.config = load_config(options)
        layer_kinds(self.config)
        self._backend = compiler(options)
        # Reading a token back makes the device wait. Where that costs nothing, an answer ends as soon as it is over.
        self._stream = options.mode == "eager" if options.stream is None else options.stream
        # A compiler, and TorchTPU in every mode, makes a program for each new shape: there all shapes are fixed.
        self.fixed_shapes = self._backend is not None or options.device.startswith("tpu")
        self._sizes = options.sizes if self.fixed_shapes else None
        self._settings: dict[str, Setting] = {"mode": options.mode, "stream": self._stream, "sizes": self._sizes}
        self.loaded = loaded or LoadedModel(options)
        self._ready: tuple[RingCache, Programs] | None = None

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
        with enough_memory(request.context):
            cache, programs = self.prepare(request.context)
            return self.answer(cache, programs, request, on_read)

    def answer(
        self, cache: RingCache, programs: Programs, request: Request, on_read: OnRead, begin: int = 0
    ) -> Completion:
        """Answer a request whose first `begin` ids, whole pieces, are in the cache already."""
        start = time.perf_counter()
        steps = [self.read(programs, request.ids, on_read, begin)]
        reply = [_checked(steps[0].token)]
        first = time.perf_counter()
        following = self.decode(programs, steps[0], len(request.ids), request.max_new - 1)
        if self._stream:
            while not self.loaded.ends(reply, request.stop) and len(reply) < request.max_new:
                steps.append(next(following))
                reply.append(_checked(steps[-1].token))
        else:
            steps.extend(following)
            reply = self._until_end(torch.cat([step.token for step in steps]).tolist(), request.stop)
        end = time.perf_counter()
        told = steps[: len(reply)]
        return Completion(
            text=self.loaded.decode(reply),
            ids=reply,
            read_s=first - start,
            decode_s=end - first,
            decoded=len(steps) - 1,
            cache_bytes=cache.bytes,
            graphs=programs.graphs,
            breaks=programs.breaks,
            tokens_read=len(request.ids),
            finish="stop" if self.loaded.ends(reply, request.stop) else "length",
            choices=choices_of(
                torch.cat([step.ids for step in told]).tolist(), torch.cat([step.logprobs for step in told]).tolist()
            ),
        )

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], last: int, context: int) -> NDArray[np.float32]:
        """Read ids in pieces and the last `last` one by one; return the logits after each of those, `[last, V]`."""
        check_fits(Request("of a divergence", ids, 0, context))
        with enough_memory(context):
            return self._logits(ids, last, context)

    def _logits(self, ids: Sequence[int], last: int, context: int) -> NDArray[np.float32]:
        _, programs = self.prepare(context)
        prompt = torch.tensor(list(ids), device=self.loaded.device)
        begin = len(ids) - last
        self.fill(programs, prompt[:begin])
        positions = torch.arange(begin, len(ids), device=self.loaded.device)
        rows = [
            programs.logits(prompt[at : at + 1], positions[at - begin : at - begin + 1], at + 1)
            for at in range(begin, len(ids))
        ]
        return usable(torch.stack(rows))

    def prepare(self, context: int, spare: int = 0) -> tuple[RingCache, Programs]:
        """Return an empty cache that holds `context` tokens, and its programs; compiled ones are compiled here.

        `spare`: slots for branches.
        """
        ready = self._ready
        if ready is None or (ready[0].context, ready[0].spare) != (context, spare):
            ready = self._ready = None  # freed before the next ones are allocated
            cache = RingCache(self.config, context, self.loaded.device, spare)
            ready = self._ready = cache, Programs(self.loaded.model, cache, self._backend, self._sizes)
            if self._backend is not None:
                ready[1].compile_all()
        ready[0].clear()
        return ready

    def read(self, programs: Programs, ids: Sequence[int], on_read: OnRead = lambda _: None, begin: int = 0) -> Step:
        """Read a prompt from `begin` on, a multiple of `PIECE`; return the step that gives the token after it."""
        if not ids:
            raise EngineError("the prompt holds no tokens: make the set again with `recall generate`")
        prompt = torch.tensor(list(ids), device=self.loaded.device)
        last = len(ids) - 1
        self.fill(programs, prompt[begin:last], on_read, begin)
        step = programs.step(prompt[last:], torch.tensor([last], device=self.loaded.device), last + 1)
        on_read(1)
        return step

    def fill(self, programs: Programs, ids: Tensor, on_read: OnRead = lambda _: None, at: int = 0) -> None:
        """Read ids `[n]`, the first of which stands at position `at`, a multiple of `PIECE`, piece by piece."""
        for begin in range(0, len(ids), PIECE):
            piece = ids[begin : begin + PIECE]
            real = len(piece)
            if self._sizes is not None:
                # Padding lies behind every real token: the mask hides it from them, and each later token is written
                # over it before it would be seen.
                piece = pad(piece, (0, PIECE - len(piece)))
            end = at + begin + len(piece)
            programs.piece(piece, torch.arange(at + begin, end, device=self.loaded.device), end)
            on_read(real)

    def decode(self, programs: Programs, step: Step, position: int, count: int) -> Iterator[Step]:
        """Yield `count` more steps after `step`, whose token stands at `position`; nothing is read back."""
        at = torch.tensor([position], device=self.loaded.device)
        for end in range(position + 1, position + 1 + count):
            step = programs.step(step.token, at, end)
            at = at + 1
            yield step

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
        raise EngineError(NAN_LOGITS)
