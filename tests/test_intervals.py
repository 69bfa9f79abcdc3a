"""The interval of a share and the test of two engines' finds are those of the literature, and hold by counting out."""

from itertools import product
from math import sqrt
from statistics import NormalDist

import pytest

from recall.intervals import mcnemar, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # R. G. Newcombe, Statistics in Medicine 17 (1998), 857-872, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_that_of_the_literature(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("trials", [1, 2, 5, 30])
def test_wilsons_interval_holds_every_share_that_the_score_test_does_not_refuse(trials: int) -> None:
    z = NormalDist().inv_cdf(0.975)
    for successes in range(trials + 1):
        low, high = wilson(successes, trials)
        for share in (step / 1000 for step in range(1001)):
            kept = abs(successes / trials - share) <= z * sqrt(share * (1 - share) / trials)
            if min(abs(share - low), abs(share - high)) > 1e-9:
                assert (low < share < high) == kept, (successes, share)


@pytest.mark.parametrize("trials", [1, 7, 1000])
def test_all_or_none_found_reaches_the_end_exactly_and_never_shrinks_to_a_point(trials: int) -> None:
    none, every = wilson(0, trials), wilson(trials, trials)
    assert none[0] == 0.0 < none[1] < 1.0
    assert 0.0 < every[0] < every[1] == 1.0
    assert every[0] == pytest.approx(1 - none[1])


def test_no_trials_leave_everything_open() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        # M. W. Fagerland, S. Lydersen, P. Laake, BMC Medical Research Methodology 13 (2013), 91: the exact test.
        (1, 7, 0.0703),
        (6, 16, 0.0525),
        (0, 0, 1.0),
        (3, 3, 1.0),
        (0, 5, 2 / 32),
        (0, 6, 2 / 64),
    ],
)
def test_mcnemars_exact_p_is_that_of_the_literature(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar(only_first, only_second) == pytest.approx(p, abs=5e-5)


@pytest.mark.parametrize("discordant", range(1, 11))
def test_mcnemars_p_is_the_share_of_coin_tosses_at_least_as_uneven(discordant: int) -> None:
    tosses = [sum(toss) for toss in product((0, 1), repeat=discordant)]
    for first in range(discordant + 1):
        uneven = abs(2 * first - discordant)
        share = sum(abs(2 * heads - discordant) >= uneven for heads in tosses) / len(tosses)
        assert mcnemar(first, discordant - first) == pytest.approx(share)


def test_mcnemars_p_of_many_prompts_is_nearly_that_of_the_normal_distribution() -> None:
    # Twice the tail beyond (520 - 480 - 1) / sqrt(1000), with the correction for continuity.
    assert mcnemar(480, 520) == pytest.approx(2 * NormalDist().cdf(-39 / sqrt(1000)), rel=0.01)
