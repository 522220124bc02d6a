"""Load statistics keep to their definitions."""

import numpy as np
import pytest

from workbench.workload.loads import load_stats, rank_counts, slot_counts


def test_n12_balance_is_taken_over_ranks_then_averaged_over_layers():
    stats = load_stats(np.array([[100, 200], [100, 200]]))
    assert stats.mean_over_max == pytest.approx(0.75)
    assert stats.max_over_mean == pytest.approx(4 / 3)


def test_known_figures():
    stats = load_stats(np.array([0, 0, 0, 8]))
    assert stats.max_over_mean == pytest.approx(4)
    assert stats.max_vio == pytest.approx(3)
    assert stats.cv == pytest.approx(np.sqrt(3))
    assert stats.gini == pytest.approx(0.75)
    even = load_stats(np.array([5, 5]))
    assert (even.max_over_mean, even.cv, even.gini, even.max_vio) == (1, 0, 0, 0)


def test_gini_is_the_mean_difference():
    counts = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    pairwise = np.abs(counts[:, None] - counts).sum() / (2 * counts.size**2 * counts.mean())
    assert load_stats(counts).gini == pytest.approx(pairwise)


def test_no_token_gives_no_figure():
    assert load_stats(np.zeros((2, 4))).max_over_mean is None
    assert load_stats(np.array([[0, 0], [1, 3]])).max_over_mean == pytest.approx(1.5)


def test_counts_leave_dropped_pairs_out():
    slots = np.array([[[0, 3], [-1, 3]], [[1, -1], [2, 0]]])
    assert slot_counts(slots, 4).tolist() == [2, 1, 1, 2]
    assert rank_counts(slots, num_ranks=2, slots_per_rank=2).tolist() == [3, 3]
