"""One read for many questions: prompts that begin alike are answered from one read of the longest of them.

The longest prompt is read piece by piece. Before each piece in which a shorter prompt parts from it, that prompt is
answered, and the cache goes on as if nothing had been asked. Alone, an answer comes from the very calls that read its
prompt by itself, so it has the same logits to the bit. Side by side, the questions lie in one forward pass as
branches that do not see each other, so that one pass over the weights serves them all; sums are then added up in
another order.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice

import torch
from torch import Tensor

from engines.choices import NAN_LOGITS, choices_of
from engines.devices import enough_memory
from engines.errors import EngineError
from engines.fits import check_fits
from engines.programs import NAN_TOKEN, Programs, Step
from engines.protocol import Completion, EngineInfo, OnRead, Request
from engines.ring import RingEngine
from engines.ring_cache import PIECE, TRUNK, RingCache

Answer = tuple[Request, Completion]

_BATCH = 16
_PASS = 2 * PIECE  # tokens of branches in one pass: the scores of more take more memory than the questions are worth


@dataclass(frozen=True)
class _Batch:
    """Requests that are asked together.

    Attributes:
        requests: they part from the longest prompt in the same piece of it.
        begin: ids before that piece.
        shared: ids that all of them begin with, as the longest prompt does.
    """

    requests: list[Request]
    begin: int
    shared: int

    @property
    def slots(self) -> int:
        """The spare slots that they take side by side: for what they share behind `begin`, and for each."""
        own = sum(len(request.ids) - self.shared + request.max_new for request in self.requests)
        return self.shared - self.begin + own


@dataclass
class _Branch:
    """One request that is being answered beside others, and its reply so far."""

    request: Request
    reply: list[int] = field(default_factory=list)
    told: list[tuple[list[int], list[float]]] = field(default_factory=list)
    first: float = 0.0  # when its first token came
    last: float = 0.0


class SharedRead:
    """Answers requests that begin alike; up to `batch` of them side by side."""

    def __init__(self, engine: RingEngine, batch: int | None) -> None:
        """Answer with `engine`; `batch` None is 16, or 1 in a mode that has programs of fixed shapes only.

        Raises:
            EngineError: for a batch above 1 in such a mode.
        """
        if batch is not None and batch > 1 and engine.fixed_shapes:
            raise EngineError("--batch above 1 needs --mode eager on a CPU or CUDA; give --batch 1")
        self._engine = engine
        self._batch = batch or (1 if engine.fixed_shapes else _BATCH)

    @property
    def info(self) -> EngineInfo:
        """What the engine is; how many questions are answered side by side can change an answer's rounding."""
        info = self._engine.info
        return replace(info, settings=info.settings | {"batch": self._batch})

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        return self._engine.encode(text)

    @torch.inference_mode()
    def complete_together(self, requests: Sequence[Request], on_read: OnRead) -> Iterator[Answer]:
        """Yield every request with its answer, the shorter prompts first. All have one context.

        `read_s` of an answer is what its prompt took of the one read, and the reading of its own rest.
        """
        for request in requests:
            check_fits(request)
        with enough_memory(requests[0].context):
            yield from self._from_one_read(requests, on_read)

    def _from_one_read(self, requests: Sequence[Request], on_read: OnRead) -> Iterator[Answer]:
        trunk = max(requests, key=lambda request: len(request.ids)).ids
        batches = list(_batches(trunk, requests, self._batch))
        spare = max(batch.slots for batch in batches) if self._batch > 1 else 0
        cache, programs = self._engine.prepare(requests[0].context, spare)
        prompt = torch.tensor(list(trunk), device=self._engine.loaded.device)
        read, spent = 0, 0.0
        for batch in batches:
            start = time.perf_counter()
            self._engine.fill(programs, prompt[read : batch.begin], on_read, read)
            spent += time.perf_counter() - start
            read = batch.begin
            for request, completion in self._ask(cache, programs, batch):
                yield request, replace(completion, read_s=spent + (completion.read_s or 0.0))
        on_read(len(trunk) - read)  # the rest was read with its own question

    def _ask(self, cache: RingCache, programs: Programs, batch: _Batch) -> Iterator[Answer]:
        if self._batch == 1:
            (request,) = batch.requests
            with cache.kept():
                completion = self._engine.answer(cache, programs, request, lambda _: None, batch.begin)
            yield request, completion
            return
        try:
            yield from self._ask_side_by_side(cache, programs, batch)
        finally:
            cache.clear_branches()

    def _ask_side_by_side(self, cache: RingCache, programs: Programs, batch: _Batch) -> Iterator[Answer]:
        start = time.perf_counter()
        device = self._engine.loaded.device
        begin, shared, requests = batch.begin, batch.shared, batch.requests
        _fill(programs, device, begin, [(requests[0].ids[begin:shared], begin, TRUNK)])
        own = [(request.ids[shared:-1], shared, number) for number, request in enumerate(requests, 1)]
        _fill(programs, device, begin, own)
        branches = [_Branch(request) for request in requests]
        tokens = [request.ids[-1] for request in requests]
        going = dict(enumerate(branches, 1))
        while going:
            positions = [len(branch.request.ids) - 1 + len(branch.reply) for branch in going.values()]
            step = programs.step_branches(*_tensors(device, tokens, positions, list(going)), begin)
            self._note(step, list(going.values()))
            going = {number: branch for number, branch in going.items() if not self._over(branch)}
            tokens = [branch.reply[-1] for branch in going.values()]
        for branch in branches:
            yield branch.request, self._completion(branch, start, cache.bytes)

    @staticmethod
    def _note(step: Step, branches: list[_Branch]) -> None:
        rows = zip(branches, step.token.tolist(), step.ids.tolist(), step.logprobs.tolist(), strict=True)
        now = time.perf_counter()
        for branch, token, ids, logprobs in rows:
            if token == NAN_TOKEN:
                raise EngineError(NAN_LOGITS)
            branch.reply.append(token)
            branch.told.append((ids, logprobs))
            branch.first = branch.first or now
            branch.last = now

    def _over(self, branch: _Branch) -> bool:
        request = branch.request
        return len(branch.reply) >= request.max_new or self._engine.loaded.ends(branch.reply, request.stop)

    def _completion(self, branch: _Branch, start: float, cache_bytes: int) -> Completion:
        loaded, request = self._engine.loaded, branch.request
        return Completion(
            text=loaded.decode(branch.reply),
            ids=branch.reply,
            read_s=branch.first - start,
            decode_s=branch.last - branch.first,
            decoded=len(branch.reply) - 1,
            cache_bytes=cache_bytes,
            tokens_read=len(request.ids),
            finish="stop" if loaded.ends(branch.reply, request.stop) else "length",
            choices=choices_of(*zip(*branch.told, strict=True)),
        )


def _batches(trunk: Sequence[int], requests: Sequence[Request], most: int) -> Iterator[_Batch]:
    """Yield the requests in batches of up to `most`, those that part from the longest prompt first in front."""
    parted = {id(request): _common(trunk, request.ids) for request in requests}
    ordered = sorted(requests, key=lambda request: parted[id(request)])
    for pieces, group in groupby(ordered, key=lambda request: parted[id(request)] // PIECE):
        while batch := list(islice(group, most)):
            yield _Batch(batch, pieces * PIECE, parted[id(batch[0])])


def _fill(
    programs: Programs, device: torch.device, begin: int, texts: Sequence[tuple[Sequence[int], int, int]]
) -> None:
    """Read texts, each at a position and as a branch, into spare slots, in as few passes as may be."""
    ids = [number for text, _, _ in texts for number in text]
    positions = [at + place for text, at, _ in texts for place in range(len(text))]
    branches = [branch for text, _, branch in texts for _ in text]
    for place in range(0, len(ids), _PASS):
        part = slice(place, place + _PASS)
        programs.fill_branches(*_tensors(device, ids[part], positions[part], branches[part]), begin)


def _tensors(
    device: torch.device, ids: list[int], positions: list[int], branches: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return three lists of as many numbers as tensors, `[n]` each."""
    rows = torch.tensor([ids, positions, branches], device=device)
    return rows[0], rows[1], rows[2]


def _common(trunk: Sequence[int], ids: Sequence[int]) -> int:
    """Return how many ids two prompts begin with alike; never all of `ids`: its last one asks for the answer."""
    pairs = enumerate(zip(trunk, ids, strict=False))
    parted = next((place for place, (left, right) in pairs if left != right), min(len(trunk), len(ids)))
    return min(parted, len(ids) - 1)
