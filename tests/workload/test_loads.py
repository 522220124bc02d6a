"""Load statistics keep to their definitions."""

from dataclasses import fields

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.workload.loads import (
    DEFINITIONS,
    LEVELS,
    LoadStats,
    link_counts,
    load_levels,
    load_stats,
    rank_counts,
    slot_counts,
)
from workbench.workload.traffic import route_all


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


@pytest.mark.parametrize("name", list(DEFINITIONS))
def test_definitions_say_what_is_computed(name):
    """A figure is its formula, evaluated as it is written; its value when even and at worst is as said."""
    counts = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    formulas = {
        "max(n) / mean(n)": lambda n: n.max() / n.mean(),
        "mean(n) / max(n)": lambda n: n.mean() / n.max(),
        "sqrt(mean((n - mean(n))^2)) / mean(n)": lambda n: np.sqrt(((n - n.mean()) ** 2).mean()) / n.mean(),
        "sum over i, j of |n_i - n_j| / (2 N^2 mean(n))": lambda n: (
            np.abs(n[:, None] - n).sum() / (2 * n.size**2 * n.mean())
        ),
        "(max(n) - mean(n)) / mean(n)": lambda n: (n.max() - n.mean()) / n.mean(),
    }
    definition = DEFINITIONS[name]
    assert getattr(load_stats(counts), name) == pytest.approx(formulas[definition.formula](counts))
    ends = {"N": 8, "1/N": 1 / 8, "sqrt(N - 1)": np.sqrt(7), "(N - 1)/N": 7 / 8, "N - 1": 7, "1": 1, "0": 0}
    assert getattr(load_stats(np.full(8, 3)), name) == pytest.approx(ends[definition.even])
    assert getattr(load_stats(np.eye(8)[2]), name) == pytest.approx(ends[definition.worst])


def test_every_figure_has_its_definition():
    assert list(DEFINITIONS) == [field.name for field in fields(LoadStats)]


def test_link_load_is_counted_by_pair_and_by_node_port():
    bytes_RR = np.array([[99, 1, 2, 3], [4, 99, 5, 6], [7, 8, 99, 9], [0, 10, 11, 99]])
    links = link_counts(bytes_RR, node_of=np.array([0, 0, 1, 1]))
    assert sorted(links["pair_scale_up"].tolist()) == [1, 4, 9, 11]
    assert sorted(links["pair_scale_out"].tolist()) == [0, 2, 3, 5, 6, 7, 8, 10]
    assert links["rank_out"].tolist() == [6, 15, 24, 21]
    assert links["node_out"].tolist() == [16, 25]
    assert links["node_in"].tolist() == [25, 16]
    alone = link_counts(np.array([[5, 6], [7, 8]]), node_of=np.array([0, 0]))
    assert [alone[level].size for level in ("pair_scale_up", "pair_scale_out", "node_out", "node_in")] == [2, 0, 0, 0]


def test_expert_skew_is_not_link_skew():
    """One hot expert a rank: experts are far from even, ranks and links are not."""
    cell = make_cell(tokens=2000, experts=64, top_k=1, ranks=4)
    ids = route_all(cell).ids
    hot = np.where(np.arange(2000) % 10 > 0, ids // 16 * 16, ids)
    bytes_RR = np.stack([np.bincount(hot[rank].ravel() // 16, minlength=4) for rank in range(4)]) * 512
    levels = load_levels(
        experts=slot_counts(hot, 64),
        ranks=rank_counts(hot, num_ranks=4, slots_per_rank=16),
        sources=np.full(4, 2000),
        bytes_RR=bytes_RR,
        node_of=np.array([0, 0, 1, 1]),
    )
    assert list(levels) == list(LEVELS)
    assert levels["expert"].max_over_mean > 10
    assert levels["source"].max_over_mean == 1
    for level in ("rank", "rank_out", "pair_scale_up", "pair_scale_out", "node_out", "node_in"):
        assert levels[level].max_over_mean < 1.1
