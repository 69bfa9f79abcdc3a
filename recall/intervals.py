"""What a few prompts can prove: how sure a share is, and whether two engines find differently often."""

from math import comb, sqrt
from statistics import NormalDist

CONFIDENCE = 0.95


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """Return Wilson's 95% score interval of a share, its lower and upper end from 0 to 1.

    It is every p with |successes / trials - p| <= z sqrt(p (1 - p) / trials), and so never leaves 0 to 1, nor shrinks
    to a point where all or none succeed. No trials leave everything open: (0, 1). Answers that depend on each other may
    count as a fraction of their number.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of the American
    Statistical Association 22 (1927), 209-212.
    """
    if not trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, spread = successes / trials, z * z / trials
    middle = share + spread / 2
    half = z * sqrt((share * (1 - share) + spread / 4) / trials)
    # At the ends the formula gives 0 and 1, but for rounding.
    low = 0.0 if successes == 0 else (middle - half) / (1 + spread)
    high = 1.0 if successes == trials else (middle + half) / (1 + spread)
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    Where two engines find equally often, a prompt that only one of them finds is as likely the one's as the other's:
    the p-value is twice the binomial tail of the smaller count, at most 1.

    Args:
        only_first: prompts that only the first engine found.
        only_second: prompts that only the second one found.

    Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions or percentages,
    Psychometrika 12 (1947), 153-157; exact: the sign test of the discordant pairs.
    """
    discordant = only_first + only_second
    ways = sum(comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * ways / (1 << discordant))
