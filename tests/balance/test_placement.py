"""Placement: every expert somewhere, replicas apart, loads dealt evenly."""

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.balance.placement import ExpertMap, expert_map_of, place, to_slots
from workbench.spec.dispatch import Balance, Placement
from workbench.spec.errors import Unsupported
from workbench.workload.loads import rank_counts
from workbench.workload.traffic import route_all

LOADS = np.array([90.0, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86])


KINDS = ["linear", "round_robin", "greedy", "eplb", "lp"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("experts", "ranks", "redundant"), [(8, 4, 0), (12, 8, 4), (256, 6, 2), (5, 1, 0), (4, 4, 4)])
def test_every_expert_has_a_slot_and_every_rank_as_many(kind, experts, ranks, redundant):
    loads = np.arange(experts, 0, -1.0)
    slots = place(experts, ranks, kind=kind, redundant=redundant, loads=loads).slots
    assert slots.shape == (ranks, (experts + redundant) // ranks)
    assert slots.dtype == np.int32
    assert set(slots.ravel().tolist()) == set(range(experts))


def test_plain_kinds_lay_experts_out_as_named():
    assert place(6, 3, kind="linear").slots.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert place(6, 3, kind="round_robin").slots.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_sit_on_other_ranks_than_their_originals(kind):
    for experts, ranks, redundant in ((16, 8, 8), (12, 8, 4), (14, 4, 2)):
        loads = np.random.default_rng(0).random(experts)
        slots = place(experts, ranks, kind=kind, redundant=redundant, loads=loads).slots
        assert all(np.unique(row).size == row.size for row in slots), (experts, slots)


def test_greedy_beats_linear_and_gives_replicas_to_the_hottest():
    copies = np.bincount(place(12, 8, kind="greedy", redundant=4, loads=LOADS).slots.ravel())
    assert copies[10] == 2
    assert copies[7] == 1
    worst = {}
    for kind in ("linear", "greedy"):
        slots = place(12, 4, kind=kind, loads=LOADS).slots
        worst[kind] = LOADS[slots].sum(axis=1).max()
    assert worst["greedy"] < worst["linear"]
    assert worst["greedy"] <= 1.1 * LOADS.sum() / 4


def test_n11_eplb_is_judged_by_load_not_by_a_reference_map():
    loads = np.array([20.0, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27])
    slots = place(12, 8, kind="eplb", redundant=4, loads=loads, num_nodes=2, num_groups=4).slots
    share = loads / np.bincount(slots.ravel())
    per_rank = share[slots].sum(axis=1)
    assert per_rank.mean() == pytest.approx(144.5)
    assert per_rank.max() <= 179.5
    flat_by_hand = 190
    assert per_rank.max() < flat_by_hand


def test_eplb_keeps_a_router_group_on_one_node_where_groups_divide():
    loads = np.random.default_rng(0).random(64)
    slots = place(64, 8, kind="eplb", redundant=8, loads=loads, num_nodes=4, num_groups=8).slots
    groups_of_node = [set((slots[2 * node : 2 * node + 2] // 8).ravel().tolist()) for node in range(4)]
    assert sorted(g for groups in groups_of_node for g in groups) == list(range(8))
    odd = place(64, 8, kind="eplb", redundant=8, loads=loads, num_nodes=4, num_groups=2)
    np.testing.assert_array_equal(odd.slots, place(64, 8, kind="eplb", redundant=8, loads=loads).slots)
    assert odd.scheme == "global"


@pytest.mark.parametrize(
    ("nodes", "groups", "scheme"),
    [(4, 8, "hierarchical"), (4, 4, "hierarchical"), (4, 2, "global"), (1, 8, "global"), (3, 3, "global")],
)
def test_the_way_that_eplb_went_is_told(nodes, groups, scheme):
    loads = np.random.default_rng(0).random(48)
    for kind in ("eplb", "lp"):
        assert place(48, 8, kind=kind, loads=loads, num_nodes=nodes, num_groups=groups).scheme == scheme
    assert place(48, 8, kind="greedy", loads=loads, num_nodes=nodes, num_groups=groups).scheme is None


def test_eplb_evens_out_real_skew():
    cell = make_cell(ranks=8, experts=64, redundant=8, tokens=500, skew={"kind": "power_law", "alpha": 1.2})
    traffic, worst = route_all(cell), {}
    for kind in ("linear", "eplb"):
        placed = Balance(placement=Placement(kind=kind, redundant_experts=8))
        expert_map = expert_map_of(cell.model_copy(update={"balance": placed}), traffic)
        counts = rank_counts(to_slots(expert_map, traffic.ids), num_ranks=8, slots_per_rank=9)
        worst[kind] = counts.max() / counts.mean()
    assert worst["eplb"] < 1.1 < worst["linear"]


def test_bad_requests_name_the_field_and_the_mend():
    with pytest.raises(ValueError, match=r"256 experts \+ 0 do not divide by 6 ranks.*is 2"):
        place(256, 6, kind="linear")
    with pytest.raises(ValueError, match="greedy needs"):
        place(8, 4, kind="greedy")
    with pytest.raises(ValueError, match="3 values for 8 experts"):
        place(8, 4, kind="greedy", loads=np.ones(3))
    with pytest.raises(Unsupported, match="fair"):
        place(8, 4, kind="fair")


def test_slots_lead_back_to_their_experts_and_replicas_share():
    expert_map = ExpertMap(np.array([[0, 1], [2, 0], [3, 0]], np.int32))
    ids = np.array([[[0, 1], [0, 2], [0, -1]], [[0, 3], [3, 0], [2, 0]]], np.int32)
    slots = to_slots(expert_map, ids)
    assert slots.dtype == np.int32
    flat = expert_map.slots.ravel()
    np.testing.assert_array_equal(np.where(slots >= 0, flat[slots], -1), ids)
    for source in range(2):
        assert sorted(slots[source][ids[source] == 0].tolist()) == [0, 3, 5]


def test_replicas_share_to_within_one_pair_a_source():
    cell = make_cell(ranks=8, experts=32, redundant=8, tokens=200, skew={"kind": "zipf", "alpha": 1.0})
    traffic = route_all(cell)
    expert_map = expert_map_of(cell, traffic)
    slots = to_slots(expert_map, traffic.ids)
    counts = np.bincount(slots.ravel(), minlength=40)
    flat = expert_map.slots.ravel()
    for expert in range(32):
        own = counts[flat == expert]
        assert own.max() - own.min() <= 8
