"""Intervals and tests against published values, exact counts and their own coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_pipeline.evaluation.statistics import (
    bootstrap_interval,
    clustered_bootstrap_interval,
    compare_paired,
    interquartile_mean,
    sign_flip_p_value,
    wilson_interval,
)

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("num_successes", "num_trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_gives_the_values_published_by_newcombe_1998(
    num_successes: int, num_trials: int, low: float, high: float
) -> None:
    assert wilson_interval(num_successes, num_trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_the_proportions_that_the_score_test_just_accepts(counts: tuple[int, int]) -> None:
    num_successes, num_trials = counts
    low, high = wilson_interval(num_successes, num_trials)
    observed = num_successes / num_trials
    assert 0 <= low <= observed <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            score = abs(observed - bound) / math.sqrt(bound * (1 - bound) / num_trials)
            assert score == pytest.approx(1.959964, rel=1e-5)


@pytest.mark.parametrize("proportion", [0.1, 0.5, 0.9])
def test_wilson_interval_covers_the_truth_as_often_as_it_says(proportion: float) -> None:
    draws = np.random.default_rng(7).binomial(50, proportion, 4000)
    covered = np.mean([low <= proportion <= high for low, high in (wilson_interval(int(k), 50) for k in draws)])
    assert 0.92 < covered < 0.98


def test_wilson_interval_refuses_what_is_no_proportion() -> None:
    for num_successes, num_trials in ((0, 0), (3, 2), (-1, 5)):
        with pytest.raises(ValueError, match="no proportion"):
            wilson_interval(num_successes, num_trials)


def test_bootstrap_interval_covers_the_mean_of_known_data() -> None:
    generator = np.random.default_rng(3)
    intervals = [bootstrap_interval(generator.normal(2.0, 1.0, 40), num_resamples=500, seed=i) for i in range(300)]
    covered = np.mean([low <= 2.0 <= high for low, high in intervals])
    assert 0.90 < covered < 0.98


def test_bootstrap_interval_has_the_width_of_the_normal_theory() -> None:
    values = np.random.default_rng(1).normal(0.0, 3.0, 400)
    low, high = bootstrap_interval(values)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(scores, st.integers(0, 2**32 - 1))
def test_bootstrap_interval_is_repeatable_and_stays_within_the_data(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, num_resamples=200, seed=seed)
    assert (low, high) == bootstrap_interval(values, num_resamples=200, seed=seed)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack


def test_clustered_interval_holds_the_spread_between_runs_that_pooling_hides() -> None:
    generator = np.random.default_rng(5)
    runs = [generator.normal(centre, 0.1, 50).tolist() for centre in (0.0, 1.0, 2.0)]
    pooled_low, pooled_high = bootstrap_interval([value for run in runs for value in run])
    low, high = clustered_bootstrap_interval(runs)
    assert high - low > 3 * (pooled_high - pooled_low)
    assert low < 1.0 < high


def test_clustered_interval_of_one_run_is_the_plain_one() -> None:
    values = np.random.default_rng(2).normal(size=60).tolist()
    assert clustered_bootstrap_interval([values]) == pytest.approx(bootstrap_interval(values), abs=0.03)


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -100.0]) == pytest.approx(3.5)
    assert interquartile_mean([1.0, 2.0, 9.0]) == pytest.approx(4.0)


@given(scores)
def test_interquartile_mean_lies_within_the_data_and_ignores_order(values: list[float]) -> None:
    result = interquartile_mean(values)
    assert result == interquartile_mean(values[::-1])
    assert min(values) - 1e-6 <= result <= max(values) + 1e-6


def test_sign_flip_p_value_is_the_exact_count_for_few_pairs() -> None:
    assert sign_flip_p_value([1.0] * 5) == pytest.approx(2 / 32)
    assert sign_flip_p_value([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    assert sign_flip_p_value([0.1, 0.2, -0.3]) == pytest.approx(1.0)
    assert sign_flip_p_value([0.0, 0.0]) == 1.0


def test_sign_flip_p_value_is_uniform_when_nothing_differs() -> None:
    generator = np.random.default_rng(11)
    p_values = [sign_flip_p_value(generator.normal(size=30), num_resamples=400, seed=i) for i in range(400)]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.035)


def test_paired_comparison_finds_what_unpaired_spread_hides() -> None:
    generator = np.random.default_rng(4)
    difficulty = generator.normal(0, 5, 40)
    better, worse = difficulty + generator.normal(0.5, 0.5, 40), difficulty
    result = compare_paired(better, worse)
    assert result.num_pairs == 40
    assert result.interval[0] > 0
    assert result.p_value < 0.01
    mirrored = compare_paired(worse, better)
    assert mirrored.mean_difference == pytest.approx(-result.mean_difference)


def test_statistics_refuse_missing_numbers_and_lost_pairs() -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="finite"):
        interquartile_mean([1.0, math.nan])
    with pytest.raises(ValueError, match="equal numbers"):
        compare_paired([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, confidence=1.0)
