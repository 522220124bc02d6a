"""The stopping rule and the interval of the median."""

import numpy as np
import pytest

from workbench.measure.stopping import StoppingRule, median_interval, relative_interval

RULE = StoppingRule(min_samples=10, max_relative_ci=0.02, max_seconds=1.0)


def test_interval_covers_the_median_as_often_as_it_says():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        low, high = median_interval(generator.exponential(size=31))
        covered += low <= np.log(2) <= high
    assert covered / 400 >= 0.93


def test_few_samples_give_the_whole_range():
    assert median_interval(np.array([3.0, 1.0, 2.0])) == (1.0, 3.0)
    assert relative_interval(np.array([])) == float("inf")


def test_steady_samples_stop_at_the_minimum():
    assert not RULE.is_enough(np.full(9, 5.0), 0.1)
    assert RULE.is_enough(np.full(10, 5.0), 0.1)


def test_noisy_samples_go_on_until_the_time_is_up():
    noisy = np.tile([1.0, 2.0], 20)
    assert not RULE.is_enough(noisy, 0.5)
    assert RULE.is_enough(noisy, 1.0)
    assert not RULE.is_enough(np.array([]), 5.0)


@pytest.mark.parametrize(("count", "elapsed"), [(0, 0.0), (3, 0.5), (10, 0.9), (40, 0.99)])
def test_next_batch_fits_the_time_left(count, elapsed):
    batch = RULE.next_batch(np.ones(count), elapsed)
    assert 1 <= batch <= 10
    if count:
        assert batch == 1 or batch * elapsed / count <= 1.0 - elapsed
