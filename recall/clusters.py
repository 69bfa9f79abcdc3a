"""Intervals of shares whose answers come in clusters: several questions on one seed's records are not independent."""

from collections.abc import Sequence
from math import ceil
from statistics import NormalDist

from recall.intervals import wilson

POWER = 0.8


def clustered(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the 95% interval of a share from clusters, each given as (found, answers).

    The variance of the share is estimated from how the clusters differ from each other; the answers are then worth as
    many independent ones as have that variance, between the number of clusters and the number of answers, and Wilson's
    interval is that of so many. Where all or none are found, the clusters tell nothing of how they differ, and each
    counts as one answer.

    Source: the ratio estimator of a cluster sample, W. G. Cochran, Sampling Techniques (3rd edition, 1977), section
    9A; the effective number of answers, L. Kish, Survey Sampling (1965), section 8.2.
    """
    clusters, n = len(counts), sum(size for _, size in counts)
    share = sum(found for found, _ in counts) / n
    effective = float(clusters)
    if clusters > 1 and 0 < share < 1:
        spread = sum((found - share * size) ** 2 for found, size in counts)
        variance = clusters / (clusters - 1) * spread / n**2
        effective = n if variance == 0 else min(n, max(clusters, share * (1 - share) / variance))
    return wilson(share * effective, effective)


def seeds_for(difference: float, questions: int, dependence: float) -> int:
    """Return how many seeds tell a difference of two shares, with a power of 80% at the 5% level.

    For the worst case, shares about one half, of two engines on different seeds.

    Args:
        difference: of the two shares, such as 0.05.
        questions: asked about each seed's records, over which the share is taken.
        dependence: how alike the answers to one seed's questions are, 0 (not at all) to 1 (one and the same).

    Source: the normal approximation of two proportions, 2 p (1 - p) (z_a + z_b)^2 / d^2 answers a side, times Kish's
    design effect 1 + (questions - 1) dependence.
    """
    z = sum(NormalDist().inv_cdf(level) for level in (0.975, POWER))
    answers = 2 * 0.25 * (z / difference) ** 2 * (1 + (questions - 1) * dependence)
    return ceil(answers / questions)
