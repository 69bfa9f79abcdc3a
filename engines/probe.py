"""Finds defects of a ring cache: compares the engine with a plain forward pass at every place where a cache can break.

Two comparisons. `logits` is the whole model, as it answers. In it a key too many or too few drowns in the rounding
of a deep bf16 model, so `layers` takes the model apart: every decoder layer reads the embeddings instead of what the
layer before it gives, and each attention's output is compared for every token. Then no rounding has passed through
more than one layer, and what an attention can reach is exact: changing one token must leave every output out of its
reach as it is, to the bit. What counts as rounding is measured on the plain forward pass alone.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.plain_pass import STEPS, Case, Reference, Taps, edges
from engines.ring import RingEngine
from engines.ring_cache import PIECE

CHECKS = {
    "logits": "logits of the whole model, after the last token",
    "token": "how far a greedy token's logit lies below the best",
    "layers": "every attention's output for every token",
    "inside": "the same, where a changed token is in reach",
    "outside": "the same, where a changed token is out of reach: must not change at all",
    "again": "the same, read after other prompts: must not change at all",
    "emptied": "positions that an emptied cache still shows",
    "slots": "slots more or fewer than promised",
}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        where: the edge.
        check: what was compared, a key of `CHECKS`.
        tokens: length of the prompt that was read, before the decoded tokens; 0 where none was.
        difference: the largest one, in the unit of what was compared.
        tolerance: the largest that rounding explains; 0 where nothing may differ.
    """

    where: str
    check: str
    tokens: int
    difference: float
    tolerance: float

    @property
    def alarm(self) -> bool:
        """Whether the difference, or a NaN, is more than rounding."""
        return not self.difference <= self.tolerance


@dataclass(frozen=True)
class Outputs:
    """What the engine's attentions gave, layers taken apart: `values` `[layers, n, hidden]` where `seen` `[layers, n]`.

    A layer whose output nobody needs, as in a piece that only fills the cache, gives none.
    """

    values: Tensor
    seen: Tensor

    def differences(self, wanted: Tensor, among: Tensor | bool = True) -> Tensor:
        """Return the norm of the difference from `wanted`, `[layers, n]`; 0 outside `seen` and `among`."""
        difference = (self.values - wanted).norm(dim=-1).nan_to_num(nan=torch.inf)
        return torch.where(self.seen & among, difference, 0)


class Probe:
    """Runs the cases through one engine.

    Without `compiled`, an engine in mode compile runs as plain Python: the same padded pieces and fixed sizes at no
    cost of compilation. The compiled programs themselves cannot be taken apart: `compiled` concerns `logits_rows`.
    """

    def __init__(self, engine: RingEngine, reference: Reference, *, compiled: bool = False) -> None:
        """Probe `engine` against `reference`, which is of the same weights."""
        self._engine = engine
        self._wanted = reference
        self._compiled = compiled
        self._taps = Taps(engine.loaded.model)

    @torch.inference_mode()
    def logits_rows(self) -> Iterator[Row]:
        """Compare logits and greedy tokens, case by case."""
        for case in self._wanted.cases:
            with nullcontext() if self._compiled else _without_compiler():
                rows = self._logits_case(case)
            yield from rows

    @torch.inference_mode()
    def layers_rows(self) -> Iterator[Row]:
        """Compare attentions, then what a changed token reaches, then what an earlier prompt leaves behind."""
        wanted = self._wanted
        yield self._slots()
        first = wanted.cases[0]
        fresh = self._outputs(wanted.ids, first)
        for case in wanted.cases:
            difference = self._outputs(wanted.ids, case).differences(wanted.layers[:, : case.tokens + case.steps])
            yield self._worst(case, "layers", difference)
        for where, position in self._needles().items():
            yield from self._needle(where, position)
        again = self._outputs(wanted.ids, first)
        yield Row("second prompt", "again", first.tokens, float(again.differences(fresh.values).max()), 0)
        yield self._emptied()

    def _logits_case(self, case: Case) -> list[Row]:
        engine, wanted = self._engine, self._wanted
        ids = wanted.ids[: case.tokens]
        _, programs = engine.prepare(wanted.context)
        step = engine.read(programs, ids)
        tokens = [step.token, *(step.token for step in engine.decode(programs, step, case.tokens, case.steps))]
        # The last token that was read, once more over itself: a step gives a token, not its logits.
        fed = torch.tensor(ids[-1:], device=engine.loaded.device) if case.steps == 0 else tokens[-2]
        end = case.tokens + case.steps
        found = programs.logits(fed, torch.tensor([end - 1], device=engine.loaded.device), end).float()
        reply = torch.cat(tokens).tolist()
        valid = all(0 <= id_ < wanted.vocabulary for id_ in reply)  # where the logits hold a NaN, it is no token
        if not valid:
            reply = [0] * len(reply)
        expected = wanted.logits([*ids, *reply[:-1]], case.steps + 1)
        chosen = expected.gather(-1, torch.tensor(reply, device=expected.device)[:, None])[:, 0]
        gap = float((expected.amax(-1) - chosen).max()) if valid else math.inf
        difference = float((found - expected[-1]).abs().max())
        return [
            Row(case.where, "logits", case.tokens, difference, wanted.logits_tolerance),
            # The best token may fall behind by as much as its logit and the chosen one's may differ together.
            Row(case.where, "token", case.tokens, gap, 2 * wanted.logits_tolerance),
        ]

    def _outputs(self, ids: Sequence[int], case: Case) -> Outputs:
        """Read the first `case.tokens` of ids and decode the next, the layers taken apart."""
        engine, taps = self._engine, self._taps
        shape = self._wanted.layers.shape
        end = case.tokens + case.steps
        values = torch.zeros(shape[0], end, shape[2], device=engine.loaded.device)
        seen = torch.zeros(shape[0], end, dtype=torch.bool, device=engine.loaded.device)
        begin = 0

        def keep(count: int) -> None:
            nonlocal begin
            for layer, output in taps.kept.items():
                rows = output[:count]  # the rest is padding
                values[layer, begin : begin + len(rows)] = rows.float()
                seen[layer, begin : begin + len(rows)] = True
            taps.kept.clear()
            begin += count
            taps.following = ids[min(begin + 1, len(ids) - 1)]

        with _without_compiler(), taps.open(apart=True):
            _, programs = engine.prepare(self._wanted.context)
            taps.kept.clear()
            taps.following = ids[min(case.tokens, len(ids) - 1)]
            step = engine.read(programs, ids[: case.tokens], keep)
            for _ in engine.decode(programs, step, case.tokens, case.steps):
                keep(1)
        return Outputs(values, seen)

    def _needles(self) -> dict[str, int]:
        """Return the positions whose token is changed: the first slot, and both sides of each edge of slots."""
        found = {"first slot": 0}
        for name, edge in edges(self._wanted.window, self._wanted.context).items():
            if name != "window":
                found |= {f"{name} -1": edge - 1, f"{name} +0": edge}
        return found

    def _needle(self, where: str, position: int) -> Iterator[Row]:
        """Change one token and compare what it reaches with the plain forward pass, and the rest with no change."""
        wanted = self._wanted
        # Decoded are the last token that sees the changed one in a sliding layer and the first that does not; the very
        # first token is followed to the end, where its slot has been taken over again and again.
        tokens = min(position + (wanted.window or 2) - 1 if position else wanted.context, wanted.context - STEPS)
        case = Case(where, max(tokens, 1), STEPS)
        end = case.tokens + case.steps
        ids = list(wanted.ids[:end])
        ids[position] = (ids[position] + 1) % wanted.vocabulary
        asking = torch.arange(end, device=self._engine.loaded.device)
        behind = asking >= position
        near = behind & (asking < position + wanted.window) if wanted.window else behind
        reached = torch.stack([near if kind == "sliding_attention" else behind for kind in wanted.kinds])
        changed = self._outputs(ids, case)
        yield self._worst(case, "inside", changed.differences(wanted.layers_of(ids), reached))
        unchanged = self._outputs(wanted.ids, case).values
        yield Row(case.where, "outside", case.tokens, float(changed.differences(unchanged, ~reached).max()), 0)

    def _emptied(self) -> Row:
        """Ask an emptied cache for the last position: it may show it nothing but itself."""
        context = self._wanted.context
        with _without_compiler():
            cache, _ = self._engine.prepare(context)
        masks = cache.place(torch.tensor([context - 1], device=cache.device), cache.slots)
        shown = max(int(mask.sum()) for mask in (masks.values() if isinstance(masks, dict) else [masks]))
        cache.clear()
        return Row("second prompt", "emptied", 0, shown - 1, 0)

    def _slots(self) -> Row:
        """Count the slots: a sliding layer has window and piece, a full one every position in whole pieces."""
        with _without_compiler():
            cache, _ = self._engine.prepare(self._wanted.context)
        every = -(-self._wanted.context // PIECE) * PIECE
        ring = min(every, (self._wanted.window or 0) + PIECE)
        promised = {"sliding_attention": ring, "full_attention": every}
        off = max(abs(table.slots - promised[kind]) for kind, table in cache.tables.items())
        return Row("slots", "slots", 0, off, 0)

    def _worst(self, case: Case, check: str, difference: Tensor) -> Row:
        """Return the row of the layer and token whose difference is the largest part of its tolerance."""
        tolerance = self._wanted.layers_tolerance[:, : difference.shape[1]]
        worst = (difference / tolerance).nan_to_num(nan=0).argmax()  # 0 / 0: nothing to round, nothing differs
        return Row(
            case.where, check, case.tokens, float(difference.flatten()[worst]), float(tolerance.flatten()[worst])
        )


def _without_compiler() -> AbstractContextManager[None]:
    """Run what is compiled as plain Python while open."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
