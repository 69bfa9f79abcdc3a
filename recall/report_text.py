"""Says in plain sentences what a report shows: its verdict, and what can be seen in each of its pictures."""

from collections.abc import Mapping

from recall.comparison import Comparison, PairSummary
from recall.differences import Verdict
from recall.grids import Grid, Share
from recall.overlaps import Overlap


def verdict(comparison: Comparison, found: Share) -> str:
    """Return what a comparison comes to, in a sentence or a few.

    Args:
        comparison: of the engine in question with the others.
        found: the share that this engine found.
    """
    name, total = comparison.subject, len(comparison.rows)
    if found.n:
        told = f"{name} finds {found.found} of {found.n} records ({percent(found)}, {interval(found.interval)})"
    else:
        told = f"{name} gives no valid answer to any of {total} prompts"
    pairs = [pair for pair in comparison.pairs if pair.a == name]
    clauses = [_agreement(pair, first=place == 0) for place, pair in enumerate(pairs)]
    sentences = [f"{told}; {', '.join(clauses)}." if clauses else f"{told}."]
    for pair in pairs:
        defects = sum(part.verdict is Verdict.DEFECT for part in pair.differences)
        if defects:
            sentences.append(f"Rounding does not explain why it and {pair.b} differ on {prompts(defects)}.")
        elif pair.logprob_difference.alarm:
            sentences.append(f"Its log-probabilities are further from those of {pair.b} than rounding explains.")
    uncounted = total - found.n
    if uncounted and found.n:
        are = "is" if uncounted == 1 else "are"
        sentences.append(f"{uncounted} of {prompts(total)} got no valid answer and {are} left out.")
    return " ".join(sentences)


def of_grid(drawn: Grid) -> str:
    """Return in words what a heatmap shows."""
    told = [f"{length:,} tokens: {percent(drawn.by_length[length])}" for length in drawn.lengths]
    return f"Share found over all depths. {'; '.join(told)}. The table below has every number."


def of_curves(grids: Mapping[str, Grid]) -> str:
    """Return in words what the curves show."""
    return " ".join(
        f"{name}: {'; '.join(f'{length:,} tokens {percent(drawn.by_length[length])}' for length in drawn.lengths)}."
        for name, drawn in grids.items()
    )


def of_overlaps(a: str, b: str, overlaps: Mapping[tuple[int, float], Overlap]) -> str:
    """Return in words what a map of differences shows."""
    both, only_a, only_b, neither = totals(overlaps)
    return f"Found by both: {both}; only by {a}: {only_a}; only by {b}: {only_b}; by neither: {neither}."


def of_pairs(comparison: Comparison) -> str:
    """Return in words what the matrix of agreement shows."""
    return " ".join(f"{pair.a} and {pair.b}: {pair.same} of {pair.n}." for pair in comparison.pairs)


def totals(overlaps: Mapping[tuple[int, float], Overlap]) -> tuple[int, int, int, int]:
    """Return how many prompts both, only the first, only the second and neither engine found."""
    found = list(overlaps.values())
    return (
        sum(overlap.both for overlap in found),
        sum(overlap.only_a for overlap in found),
        sum(overlap.only_b for overlap in found),
        sum(overlap.neither for overlap in found),
    )


def percent(share: Share) -> str:
    """Return a share in whole percent; 0% means none, and 100% all."""
    return whole_percent(share.found, share.n) if share.n else "no answer"


def whole_percent(part: int, of: int) -> str:
    """Return a part in whole percent; 0% means none, and 100% all."""
    rounded = round(100 * part / of)
    return f"{rounded if part in (0, of) else min(max(rounded, 1), 99)}%"


def interval(ends: tuple[float, float] | None) -> str:
    """Return an interval of a share in whole percent."""
    return "" if ends is None else f"{ends[0]:.0%} to {ends[1]:.0%}"


def prompts(count: int) -> str:
    """Return a number of prompts in words."""
    return f"{count} prompt" if count == 1 else f"{count} prompts"


def _agreement(pair: PairSummary, *, first: bool) -> str:
    if pair.agreement is None:
        return f"it and {pair.b} have no answers that can be compared"
    words = "give the same answer " if first else ""
    return f"it and {pair.b} {words}on {pair.same} of {pair.n} prompts"
