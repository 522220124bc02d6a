"""Weights that move between two placements: by hand, in bytes, in time."""

import numpy as np
import pytest

from workbench.balance.expert_map import ExpertMap, even_rank_loads
from workbench.balance.movement import amortised_steps, move, movement_us, settled
from workbench.balance.placement import place
from workbench.spec.cluster import Hardware, ScaleOut, ScaleUp

MIB = 1 << 20


def map_of(*rows):
    return ExpertMap(np.array(rows, np.int32))


def part(*, mesh=None, **rates):
    return Hardware(
        name="part", vendor="any", device="cuda", bf16_dense_tflops=1.0, memory_gb=1.0, memory_tb_per_s=1.0,
        scale_up=ScaleUp(gb_per_s=100.0, domain=8, topology="mesh" if mesh else "switch", per_peer_gb_per_s=mesh,
                         latency_us=2.0),
        scale_out=ScaleOut(gb_per_s=10.0, latency_us=5.0, **rates),
    )  # fmt: skip


BEFORE = map_of([0, 1], [2, 3], [4, 5], [6, 7])


def test_nothing_moves_between_equal_maps_or_inside_of_a_rank():
    for after in (BEFORE, map_of([1, 0], [3, 2], [5, 4], [7, 6])):
        cost = move(BEFORE, after, expert_bytes=MIB, ranks_per_node=2)
        assert cost.slots.size == 0
        assert cost.bytes_RR.sum() == 0
        assert movement_us(cost, part()) == 0
    assert cost.changed == 8


def test_experts_come_over_the_nearest_link_and_from_the_one_that_sent_least():
    before = map_of([0, 1, 4], [2, 0, 3], [2, 5, 7], [6, 7, 1])
    after = map_of([0, 2, 1], [2, 6, 3], [0, 5, 4], [6, 2, 7])
    cost = move(before, after, expert_bytes=MIB, ranks_per_node=2)
    assert cost.experts.tolist() == [2, 6, 0, 4, 2]
    assert cost.sources.tolist() == [1, 3, 0, 0, 2]
    assert cost.destinations.tolist() == [0, 1, 2, 2, 3]
    sent, received = cost.rank_bytes()["scale_up"]
    assert (sent // MIB).tolist() == [0, 1, 1, 0]
    assert (received // MIB).tolist() == [1, 0, 0, 1]
    sent, received = cost.rank_bytes()["scale_out"]
    assert (sent // MIB).tolist() == [2, 0, 0, 1]
    assert (received // MIB).tolist() == [0, 1, 2, 0]


def test_a_rank_fetches_an_expert_once_for_two_slots():
    before, after = map_of([0, 1, 2, 3], [3, 4, 5, 0]), map_of([0, 4, 4, 1], [3, 5, 2, 0])
    cost = move(before, after, expert_bytes=8, ranks_per_node=2)
    assert cost.bytes_RR.tolist() == [[0, 8], [8, 0]]
    assert cost.changed == 5


def test_the_slowest_rank_direction_and_link_decide():
    after = map_of([0, 4], [2, 5], [1, 3], [6, 7])
    cost = move(BEFORE, after, expert_bytes=10_000_000, ranks_per_node=2)
    assert movement_us(cost, part()) == pytest.approx(5 + 20e6 / 10e3)
    assert movement_us(cost, part(oversubscription=2.0)) == pytest.approx(5 + 20e6 / 5e3)
    assert movement_us(cost, part(), expert_tp=2) == pytest.approx(5 + 10e6 / 10e3)
    assert movement_us(cost, part(node_gb_per_s=5.0)) == pytest.approx(5 + 20e6 / 5e3)
    assert movement_us(cost, part(node_gb_per_s=5.0), expert_tp=2) == pytest.approx(5 + 20e6 / 5e3)
    assert movement_us(cost, part(node_gb_per_s=5.0, oversubscription=2.0)) == pytest.approx(5 + 20e6 / 2.5e3)
    assert movement_us(cost, part(node_gb_per_s=16.0)) == pytest.approx(5 + 20e6 / 10e3)
    inside = move(BEFORE, map_of([2, 3], [0, 1], [4, 5], [6, 7]), expert_bytes=10_000_000, ranks_per_node=2)
    assert movement_us(inside, part()) == pytest.approx(2 + 20e6 / 100e3)
    assert movement_us(inside, part(mesh=25.0)) == pytest.approx(2 + 20e6 / 25e3)


def test_renamed_ranks_of_a_node_cost_nothing_and_keep_their_loads():
    swapped = map_of([3, 2], [1, 0], [6, 4], [5, 7])
    kept = settled(BEFORE, swapped, ranks_per_node=2)
    assert kept.slots[:2].tolist() == BEFORE.slots[:2].tolist()
    assert kept.slots[2:].tolist() == [[4, 6], [5, 7]]
    loads = np.arange(8.0)
    assert sorted(even_rank_loads(kept, loads)) == sorted(even_rank_loads(swapped, loads))
    across = settled(BEFORE, map_of([4, 5], [6, 7], [0, 1], [2, 3]), ranks_per_node=2)
    assert move(BEFORE, across, expert_bytes=1, ranks_per_node=2).experts.size == 8


def test_a_small_drift_moves_less_once_settled():
    rng = np.random.default_rng(0)
    loads = rng.pareto(1.2, 64)
    maps = [place(64, 8, kind="eplb", redundant=8, loads=loads * rng.uniform(0.9, 1.1, 64)) for _ in range(2)]
    raw, less = (
        move(maps[0], after, expert_bytes=1, ranks_per_node=4).experts.size
        for after in (maps[1], settled(maps[0], maps[1], ranks_per_node=4))
    )
    assert 0 < less < raw


def test_steps_until_a_move_has_paid():
    assert amortised_steps(1000.0, before_us=120.0, after_us=100.0) == 50
    assert amortised_steps(1001.0, before_us=120.0, after_us=100.0) == 51
    assert amortised_steps(0.0, before_us=1.0, after_us=1.0) == 0
    assert amortised_steps(1.0, before_us=100.0, after_us=100.0) is None


def test_maps_of_other_groups_are_refused():
    with pytest.raises(ValueError, match="4 ranks with 8 experts cannot become 2 ranks with 4"):
        move(BEFORE, map_of([0, 1], [2, 3]), expert_bytes=1, ranks_per_node=2)


def test_a_near_holder_goes_before_a_lower_far_one():
    before, after = map_of([0, 1], [2, 3], [0, 4], [5, 6]), map_of([0, 1], [2, 3], [6, 4], [5, 0])
    assert move(before, after, expert_bytes=1, ranks_per_node=2).sources.tolist() == [3, 2]
