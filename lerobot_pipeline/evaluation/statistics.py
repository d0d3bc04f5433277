"""Intervals and comparisons for scores of episodes and runs. Everything is a pure, seeded function of its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
"""Resamples of a bootstrap; the Monte Carlo error of a 95 % bound is then far below its width."""

_EXACT_SIGN_FLIPS_UP_TO = 14
"""With at most this many non-zero differences all 2^n sign patterns are counted instead of drawn."""


def wilson_interval(num_successes: int, num_trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval of a proportion; both bounds lie in [0, 1], also for 0 or all successes.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22.
    Raises `ValueError` without trials, or with more successes than trials.
    """
    if num_trials < 1 or not 0 <= num_successes <= num_trials:
        raise ValueError(f"{num_successes} successes in {num_trials} trials is no proportion")
    z = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2)
    proportion = num_successes / num_trials
    denominator = 1 + z**2 / num_trials
    centre = (proportion + z**2 / (2 * num_trials)) / denominator
    spread = z * math.sqrt(proportion * (1 - proportion) / num_trials + z**2 / (4 * num_trials**2)) / denominator
    # At the ends the bound is 0 or 1 exactly; rounding would leave something like 1e-17.
    low = 0.0 if num_successes == 0 else max(0.0, centre - spread)
    high = 1.0 if num_successes == num_trials else min(1.0, centre + spread)
    return low, high


def bootstrap_interval(
    values: Sequence[float], confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` (n,).

    Source: Efron and Tibshirani (1993), "An Introduction to the Bootstrap", chapter 13.
    """
    sample = _as_sample(values)
    chosen = np.random.default_rng(seed).integers(0, len(sample), (num_resamples, len(sample)))
    return _percentiles(sample[chosen].mean(axis=1), confidence)


def clustered_bootstrap_interval(
    runs: Sequence[Sequence[float]],
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of run means, for episodes within runs (training seeds).

    Runs are drawn first and episodes within each drawn run second, so that the interval holds the spread between
    trainings and does not count episodes of one training as independent trainings.

    Source: Davison and Hinkley (1997), "Bootstrap Methods and their Application", section 3.8.
    """
    samples = [_as_sample(run) for run in runs]
    if not samples:
        raise ValueError("an interval needs at least one run")
    generator = np.random.default_rng(seed)
    drawn_runs = generator.integers(0, len(samples), (num_resamples, len(samples)))
    means = np.empty(drawn_runs.shape)
    for index, sample in enumerate(samples):
        places = drawn_runs == index
        drawn_episodes = generator.integers(0, len(sample), (int(places.sum()), len(sample)))
        means[places] = sample[drawn_episodes].mean(axis=1)
    return _percentiles(means.mean(axis=1), confidence)


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half of `values` (n,): a quarter, rounded down, is cut off at each end.

    Source: Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
    """
    ordered = np.sort(_as_sample(values))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """How much better the first of two methods is, on the same episodes."""

    num_pairs: int
    mean_difference: float
    interval: tuple[float, float]
    """Percentile bootstrap over pairs."""
    p_value: float
    """Two-sided sign-flip test of "no difference"."""


def compare_paired(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> PairedComparison:
    """Compare two methods on the same episodes: `first[i]` and `second[i]` share their seed.

    Raises `ValueError` when the two differ in length: pairs that do not exist must not be invented.
    """
    if len(first) != len(second):
        raise ValueError(f"pairs need equal numbers of episodes, got {len(first)} and {len(second)}")
    differences = _as_sample(first) - _as_sample(second)
    return PairedComparison(
        num_pairs=len(differences),
        mean_difference=float(differences.mean()),
        interval=bootstrap_interval(differences.tolist(), confidence, num_resamples, seed),
        p_value=sign_flip_p_value(differences.tolist(), num_resamples, seed),
    )


def sign_flip_p_value(differences: Sequence[float], num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of "the differences (n,) are symmetric about zero", by flipping their signs.

    Exact for few pairs. Otherwise drawn, with the observed pattern counted as one of the draws, so that the value is
    never 0: Phipson and Smyth (2010), "Permutation p-values should never be zero".
    """
    sizes = np.abs(_as_sample(differences))
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return 1.0
    # Sums that are equal on paper differ in their last bits; without the slack a tie would count as a smaller one.
    observed = abs(float(np.sum(differences))) * (1 - 1e-12)
    if len(sizes) <= _EXACT_SIGN_FLIPS_UP_TO:
        patterns = (np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes))) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ sizes) >= observed))
    signs = np.random.default_rng(seed).integers(0, 2, (num_resamples, len(sizes))) * 2 - 1
    num_extreme = int(np.sum(np.abs(signs @ sizes) >= observed))
    return (num_extreme + 1) / (num_resamples + 1)


def _as_sample(values: Sequence[float]) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise ValueError("statistics need a flat list of at least one finite number")
    return sample


def _percentiles(estimates: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    tail = (1 - _checked(confidence)) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return float(low), float(high)


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return confidence
