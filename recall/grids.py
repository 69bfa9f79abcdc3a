"""The length x depth picture as numbers: how many cells of a sweep were found, by length and depth, and its margins."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recall.clusters import clustered
from recall.intervals import wilson
from recall.results import ResultRow


@dataclass(frozen=True)
class Share:
    """How many of the answers that count were found, and the 95% interval of that share; None where none counts."""

    found: int
    n: int
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Grid:
    """Shares by length in tokens and depth, and over all depths of a length, all lengths of a depth, and all."""

    lengths: list[int]
    depths: list[float]
    cells: dict[tuple[int, float], Share]
    by_length: dict[int, Share]
    by_depth: dict[float, Share]
    overall: Share
    seeds: int


def grid(rows: Iterable[ResultRow]) -> Grid:
    """Return the picture of the rows that tell their length (budget) and depth.

    A cell's answers come from different seeds and are independent: Wilson's interval. Several questions on one seed's
    records are not, so a margin's interval counts by seeds.
    """
    placed = [row for row in rows if row.budget is not None and row.depth is not None]
    by_cell: dict[tuple[int, float], list[ResultRow]] = defaultdict(list)
    by_length: dict[int, list[ResultRow]] = defaultdict(list)
    by_depth: dict[float, list[ResultRow]] = defaultdict(list)
    for row in placed:
        assert row.budget is not None
        assert row.depth is not None
        by_cell[row.budget, row.depth].append(row)
        by_length[row.budget].append(row)
        by_depth[row.depth].append(row)
    return Grid(
        sorted(by_length),
        sorted(by_depth),
        {cell: share(found) for cell, found in by_cell.items()},
        {length: clustered_share(found) for length, found in by_length.items()},
        {depth: clustered_share(found) for depth, found in by_depth.items()},
        clustered_share(placed),
        len({row.seed for row in placed}),
    )


def share(rows: Sequence[ResultRow]) -> Share:
    """Return the share found of independent answers."""
    counting = [row for row in rows if row.status == "ok"]
    found = sum(row.found for row in counting)
    return Share(found, len(counting), wilson(found, len(counting)) if counting else None)


def clustered_share(rows: Sequence[ResultRow]) -> Share:
    """Return the share found of answers that depend on each other within a seed."""
    seeds: dict[int | None, list[ResultRow]] = defaultdict(list)
    for row in rows:
        if row.status == "ok":
            seeds[row.seed].append(row)
    counts = [(sum(row.found for row in group), len(group)) for group in seeds.values()]
    found, n = sum(found for found, _ in counts), sum(n for _, n in counts)
    return Share(found, n, clustered(counts) if n else None)
