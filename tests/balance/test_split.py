"""The linear program over replicas: exact totals, the least fullest rank, and dealing that keeps its shares."""

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.balance.expert_map import ExpertMap, even_rank_loads
from workbench.balance.placement import expert_map_of, place, to_slots
from workbench.balance.split import split_tokens
from workbench.spec.dispatch import Balance, Placement
from workbench.workload.loads import rank_counts, slot_counts
from workbench.workload.traffic import route_all

PAIR = ExpertMap(np.array([[0, 1], [0, 2]], np.int32), split="lp")
"""Expert 0 on both ranks; 1 and 2 alone."""


def rank_loads(expert_map, shares):
    return shares.reshape(expert_map.num_ranks, -1).sum(axis=1)


def test_a_rank_with_another_hot_expert_takes_less_of_the_shared_one():
    shares = split_tokens(PAIR, np.array([10, 6, 2]))
    np.testing.assert_allclose(shares, [3, 6, 7, 2])
    assert even_rank_loads(PAIR, np.array([10, 6, 2])).max() == 11


def test_a_rank_too_full_by_itself_takes_none_of_it():
    shares = split_tokens(PAIR, np.array([4, 20, 2]))
    np.testing.assert_allclose(shares, [0, 20, 4, 2])
    np.testing.assert_allclose(split_tokens(PAIR, np.zeros(3)), 0)


@pytest.mark.parametrize("seed", range(6))
def test_no_split_is_better_than_the_linear_programs(seed):
    """Its fullest rank is the bound of max-flow: some set of experts must all fit on the ranks that hold them."""
    rng = np.random.default_rng(seed)
    loads = rng.pareto(1.0, 12) * 100
    expert_map = place(12, 4, kind="lp", redundant=4, loads=rng.pareto(1.0, 12))
    fullest = rank_loads(expert_map, split_tokens(expert_map, loads)).max()
    bound = 0.0
    for members in range(1, 1 << 4):
        ranks = [rank for rank in range(4) if members >> rank & 1]
        inside = np.isin(expert_map.slots, expert_map.slots[ranks])
        outside = set(expert_map.slots[[rank for rank in range(4) if rank not in ranks]].ravel().tolist())
        bound = max(bound, sum(loads[e] for e in range(12) if e not in outside) / len(ranks))
        assert inside.any()
    assert fullest == pytest.approx(bound)
    assert fullest <= even_rank_loads(expert_map, loads).max() + 1e-9


def test_by_source_the_load_is_as_good_and_tokens_stay_at_home_where_they_may():
    counts = np.array([[5, 6, 0], [5, 0, 2]])
    shares = split_tokens(PAIR, counts)
    assert shares.shape == (2, 4)
    np.testing.assert_allclose(rank_loads(PAIR, shares.sum(axis=0)), [9, 9])
    np.testing.assert_allclose(shares[:, [0, 2]], [[3, 2], [0, 5]], atol=1e-6)
    away = split_tokens(PAIR, counts, cost_RR=np.eye(2))
    np.testing.assert_allclose(rank_loads(PAIR, away.sum(axis=0)), [9, 9])
    np.testing.assert_allclose(away[:, [0, 2]], [[0, 5], [3, 2]], atol=1e-6)


def test_counts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="3 experts on 2 ranks"):
        split_tokens(PAIR, np.ones(4))


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_dealt_slots_are_of_the_right_experts_and_fill_ranks_as_the_program_says(ranks):
    cell = make_cell(ranks=ranks, experts=32, redundant=4 * ranks - 32 % ranks, tokens=100,
                     skew={"kind": "zipf", "alpha": 1.0})  # fmt: skip
    traffic = route_all(cell)
    loads = slot_counts(traffic.ids, 32)
    expert_map = place(32, ranks, kind="lp", redundant=-32 % ranks + ranks, loads=loads)
    slots = to_slots(expert_map, traffic.ids)
    np.testing.assert_array_equal(expert_map.slots.ravel()[slots], traffic.ids)
    counts = rank_counts(slots, num_ranks=ranks, slots_per_rank=expert_map.slots_per_rank)
    wanted = rank_loads(expert_map, split_tokens(expert_map, loads))
    assert np.abs(counts - wanted).max() <= expert_map.slots_per_rank
    np.testing.assert_array_equal(slots, to_slots(expert_map, traffic.ids.copy()))


def test_dropped_pairs_stay_dropped_and_each_source_is_spread_alike():
    ids = np.zeros((4, 30, 1), np.int32)
    ids[0, :5] = -1
    expert_map = ExpertMap(np.array([[0, 1], [0, 2], [0, 3]], np.int32), split="lp")
    slots = to_slots(expert_map, ids)
    assert (slots[0, :5] == -1).all()
    for source in range(1, 4):
        assert np.bincount(slots[source].ravel(), minlength=5)[[0, 2, 4]].tolist() == [10, 10, 10]


def test_lp_beats_even_shares_of_the_same_placement_on_skewed_traffic():
    cell = make_cell(ranks=8, experts=32, redundant=8, tokens=400, skew={"kind": "power_law", "alpha": 1.2})
    traffic, worst = route_all(cell, step=1), {}
    for kind in ("eplb", "lp"):
        placed = cell.model_copy(update={"balance": Balance(placement=Placement(kind=kind, redundant_experts=8))})
        expert_map = expert_map_of(placed, route_all(placed, step=0))
        counts = rank_counts(to_slots(expert_map, traffic.ids), num_ranks=8, slots_per_rank=5)
        worst[kind] = counts.max() / counts.mean()
    assert worst["lp"] < worst["eplb"]
    assert worst["lp"] < 1.02
