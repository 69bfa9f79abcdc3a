"""Counts for each length and depth what two engines found of the same prompts: both, only one, or neither."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from recall.results import ResultRow


@dataclass(frozen=True)
class Overlap:
    """Prompts that both engines answered validly, by who found the asked record."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        """All of them."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """The share that b found less the share that a found."""
        return (self.only_b - self.only_a) / self.n


def overlaps(of_a: Sequence[ResultRow], of_b: Sequence[ResultRow]) -> dict[tuple[int, float], Overlap]:
    """Return what two engines found at each length (budget) and depth of the prompts that both answered validly."""
    by_prompt = {row.prompt_id: row for row in of_b if row.status == "ok"}
    counts: dict[tuple[int, float], Counter[tuple[bool, bool]]] = defaultdict(Counter)
    for row in of_a:
        other = by_prompt.get(row.prompt_id)
        if row.status == "ok" and other is not None and row.budget is not None and row.depth is not None:
            counts[row.budget, row.depth][row.found, other.found] += 1
    return {
        place: Overlap(found[True, True], found[True, False], found[False, True], found[False, False])
        for place, found in counts.items()
    }
