"""What each strategy is known for: its rounds, its copies, its bytes, and the rules that it refuses by."""

import math

import numpy as np
import pytest

from tests.comm.test_plan import planned, routed
from tests.workload.factory import make_cell
from workbench.balance.placement import expert_map_of
from workbench.comm.hop import PADDING
from workbench.comm.oracle import misdelivered
from workbench.comm.plan import byte_counts
from workbench.comm.strategies import make_plan, metadata_width
from workbench.comm.strategies.balanced_stages import birkhoff_stages
from workbench.comm.topology import Topology, topology_of
from workbench.spec.dispatch import Dispatch
from workbench.spec.errors import Unsupported
from workbench.workload.traffic import route_all

EIGHT = Topology(8, 4)


def distinct(groups_RTK):
    """(Token, group) pairs; a dropped choice has group -1."""
    return sum(np.unique(token[token >= 0]).size for token in groups_RTK.reshape(-1, groups_RTK.shape[-1]))


def wire(plan):
    return byte_counts(plan, payload_bytes=1, row_bytes=1)


def plan_of(dispatch, **cell):
    cell = make_cell(dispatch=Dispatch(**dispatch), **cell)
    traffic = route_all(cell)
    return make_plan(cell, traffic, expert_map_of(cell, traffic)), traffic


def test_flat_padded_sends_the_fullest_block_to_everyone():
    ids, weights = routed(4, 9, 3, 2)
    plan = planned("flat_padded", ids, weights, 2, Topology(4, 2))
    (hop,) = plan.hops
    fullest = max(np.bincount(ids[rank][ids[rank] >= 0], minlength=8).max() for rank in range(4))
    assert (hop.send_counts == 2 * fullest).all()
    padding = sum(int((rows == PADDING).sum()) for rows in hop.send_rows)
    assert padding == 4 * 8 * fullest - (ids >= 0).sum()
    assert not hop.announced, "ranks have to agree on the fullest"


def test_flat_padded_takes_its_blocks_from_the_capacity():
    cell = {"ranks": 4, "tokens": 40, "experts": 16, "top_k": 3}
    balance = make_cell().balance.model_copy(update={"capacity": 3.0})
    plan, traffic = plan_of({"strategy": "flat_padded"}, balance=balance, **cell)
    limit = 3 * math.floor(3.0 * math.ceil(40 / 16))
    assert (plan.hops[0].send_counts == 4 * limit).all()
    assert plan.hops[0].announced
    least = balance.model_copy(update={"capacity": -3.0})
    plan, traffic = plan_of({"strategy": "flat_padded"}, balance=least, **cell)
    fullest = max(np.bincount(part[part >= 0]).max() for part in traffic.ids)
    assert (plan.hops[0].send_counts == 4 * fullest).all()
    assert fullest < limit


@pytest.mark.parametrize("pairing", ["ring", "xor"])
def test_pairwise_has_one_peer_a_round(pairing):
    ids, weights = routed(8, 9, 3, 2, dropped=0.0)
    plan = planned("pairwise", ids, weights, 2, EIGHT, pairing=pairing)
    (hop,) = plan.hops
    assert len(hop.rounds) == 7
    sent = np.zeros((8, 8), int)
    for step in hop.rounds:
        assert sorted(step.destination.tolist()) == list(range(8))
        if pairing == "xor":
            assert (step.destination[step.destination] == np.arange(8)).all()
        np.add.at(sent, (np.arange(8), step.destination), step.rows)
    np.testing.assert_array_equal(sent, hop.send_counts * (1 - np.eye(8, dtype=int)))
    flat = planned("flat", ids, weights, 2, EIGHT)
    np.testing.assert_array_equal(flat.hops[0].send_counts, hop.send_counts)
    np.testing.assert_array_equal(sum(hop.round_counts()), sent)


def test_xor_needs_a_power_of_two():
    ids, weights = routed(6, 4, 2, 2)
    with pytest.raises(Unsupported, match=r"dispatch.pairing: xor needs a power of two, and there are 6 ranks"):
        planned("pairwise", ids, weights, 2, Topology(6, 2), pairing="xor")


@pytest.mark.parametrize(("ranks", "rounds"), [(1, 1), (2, 1), (3, 2), (5, 3), (8, 3)])
def test_bruck_moves_a_row_for_every_bit_of_its_distance(ranks, rounds):
    ids, weights = routed(ranks, 9, 2, 2, dropped=0.0)
    plan = planned("bruck", ids, weights, 2, Topology(ranks, 2))
    assert len(plan.hops) == rounds
    home = np.arange(ranks)[:, None, None]
    distance = ((ids // 2 - home) % ranks)[ids >= 0]
    assert wire(plan).wire == sum(int(value).bit_count() for value in distance)
    for bit, hop in enumerate(plan.hops):
        onward = (np.arange(ranks) + 2**bit) % ranks
        allowed = np.eye(ranks, dtype=bool) | (onward[:, None] == np.arange(ranks))
        assert not hop.send_counts[~allowed].any(), "one peer a round"


def test_two_dh_goes_to_the_owners_rail_first_and_copies_nothing_twice():
    ids, weights = routed(8, 12, 6, 4, dropped=0.0)
    plan = planned("two_dh", ids, weights, 4, EIGHT)
    inside, across = plan.hops
    masks, rail = EIGHT.link_masks(), np.arange(8) % 4
    assert not inside.send_counts[masks["scale_out"]].any()
    assert not across.send_counts[masks["scale_up"]].any()
    assert not across.send_counts[rail[:, None] != rail[None, :]].any()
    assert (inside.send_counts.sum(), across.send_counts.sum()) == ((ids >= 0).sum(),) * 2
    assert wire(plan).scale_out == wire(planned("flat", ids, weights, 4, EIGHT)).scale_out
    owner, home = ids // 4, np.arange(8)[:, None, None]
    assert wire(plan).scale_up == ((ids >= 0) & (owner % 4 != home % 4)).sum()


def test_multilevel_dedup_copies_once_a_group_at_every_level():
    ids, weights = routed(16, 10, 6, 2, dropped=0.0)
    plan = planned("multilevel_dedup", ids, weights, 2, Topology(16, 4, outer=(8,), inner=(2,)))
    assert [hop.name for hop in plan.hops] == ["groups_of_8", "scale_out", "groups_of_2", "scale_up"]
    owner = np.where(ids >= 0, ids // 2, -1)
    for hop, size in zip(plan.hops, (8, 4, 2, 1), strict=True):
        assert hop.send_counts.sum() == distinct(np.where(owner >= 0, owner // size, -1))
    assert misdelivered(plan, ids, weights) == []


def test_multilevel_dedup_of_nodes_alone_is_node_dedup():
    ids, weights = routed(8, 10, 6, 2)
    several, one = (planned(name, ids, weights, 2, EIGHT) for name in ("multilevel_dedup", "node_dedup"))
    assert len(several.hops) == len(one.hops) == 2
    for first, second in zip(several.hops, one.hops, strict=True):
        np.testing.assert_array_equal(first.send_counts, second.send_counts)


def test_levels_come_from_the_cluster_or_the_scenario():
    rack = {"ranks": 36, "gpus_per_node": 4, "domain": 72, "device": "cuda"}
    assert topology_of(make_cell(**rack)).levels == (36, 4)
    assert topology_of(make_cell(**rack, dispatch=Dispatch(levels=(12,)))).levels == (36, 12)
    asked = Dispatch(strategy="multilevel_dedup", levels=(8, 4))
    assert topology_of(make_cell(ranks=16, gpus_per_node=4, dispatch=asked)).levels == (8, 4)
    with pytest.raises(Unsupported, match=r"dispatch.levels: \[6\] on nodes of 4 ranks"):
        topology_of(make_cell(ranks=16, gpus_per_node=4, dispatch=Dispatch(levels=(6,))))
    with pytest.raises(ValueError, match="groups of 4 ranks do not fill up groups of 4"):
        Topology(16, 4, outer=(4,))


def test_packed_sends_to_those_who_get_something():
    ids, weights = routed(8, 1, 2, 4)
    (hop,) = planned("packed", ids, weights, 4, EIGHT).hops
    assert hop.carrier == "point_to_point"
    assert hop.messages().sum() < 8 * 7
    assert hop.messages().sum() == ((hop.send_counts > 0) & ~np.eye(8, dtype=bool)).sum()


def test_low_latency_is_a_message_a_pair_and_refuses_what_its_buffers_do_not_hold():
    ids, weights = routed(8, 9, 3, 2)
    (hop,) = planned("low_latency", ids, weights, 2, EIGHT).hops
    assert hop.messages().sum() == wire(planned("flat", ids, weights, 2, EIGHT)).wire
    plan_of({"strategy": "low_latency"}, tokens=511, experts=16)
    with pytest.raises(Unsupported, match=r"low_latency has static buffers for 511 tokens a rank .* asks for 512"):
        plan_of({"strategy": "low_latency"}, tokens=512, experts=16)
    plan, _ = plan_of({"strategy": "low_latency", "overlap": {"kind": "chunk", "degree": 2}}, tokens=1022, experts=16)
    assert plan.hops, "a chunk is a call"
    cell = make_cell(dispatch=Dispatch(strategy="low_latency"), tokens=4096, experts=16)
    few = route_all(cell, max_tokens=4)
    with pytest.raises(Unsupported, match="4096 at once"):
        make_plan(cell, few, expert_map_of(cell, few))


@pytest.mark.parametrize("per_node", [1, 4, 8])
def test_all_gather_bytes_do_not_depend_on_the_routing(per_node):
    ids, weights = routed(8, 9, 3, 2)
    topology, itself = Topology(8, per_node), np.eye(8, dtype=bool)
    for slots in (ids, np.full_like(ids, -1)):
        plan = planned("allgather_reduce_scatter", slots, weights, 2, topology)
        sent_R = sum(np.where(itself, 0, hop.send_counts).sum(axis=1) for hop in plan.hops)
        assert sent_R.tolist() == [7 * 9] * 8
        assert all(hop.announced for hop in plan.hops)
        assert wire(plan).scale_out == 8 * 9 * (8 // per_node - 1)


def test_balanced_stages_share_what_leaves_a_node_and_pair_nodes_one_to_one():
    ids, weights = routed(16, 30, 4, 2, dropped=0.0)
    ids[0:2] = ids[0:2] % 8 + 24  # the first ranks want one node alone
    weights[0] = 0.5
    topology = Topology(16, 4)
    plan = planned("balanced_stages", ids, weights, 2, topology)
    assert misdelivered(plan, ids, weights) == []
    spread, across, inside = plan.hops
    node, masks = topology.node_of, topology.link_masks()
    assert not spread.send_counts[masks["scale_out"]].any()
    assert not inside.send_counts[masks["scale_out"]].any()
    between = np.where(masks["scale_out"], across.send_counts, 0)
    for source in range(4):
        for target in range(4):
            shares = between[node == source][:, node == target].sum(axis=1)
            assert shares.max() - shares.min() <= 1
    busiest = max(int(between[node == n].sum() / 4) for n in range(4))
    lengths = 0
    for step in across.rounds:
        sending = step.rows > 0
        targets = [set(node[step.destination[sending & (node == n)]].tolist()) for n in range(4)]
        assert all(len(target) <= 1 for target in targets), "a node has one target"
        assert len(set().union(*targets)) == sum(len(target) for target in targets), "and one source"
        lengths += step.rows.max()
    np.testing.assert_array_equal(sum(across.round_counts()), between)
    assert busiest <= lengths <= max(busiest, int(between.sum(axis=0).max())) + 4, (
        "rounds take what the fullest node takes"
    )


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_stages_take_as_long_as_the_fullest_row_or_column(nodes):
    rng = np.random.default_rng(nodes)
    for _ in range(10):
        matrix = rng.integers(0, 50, (nodes, nodes))
        np.fill_diagonal(matrix, 0)
        carried = np.zeros_like(matrix)
        stages = birkhoff_stages(matrix)
        for length, target in stages:
            busy = np.flatnonzero(target >= 0)
            assert np.unique(target[busy]).size == busy.size
            carried[busy, target[busy]] += length
        assert (carried >= matrix).all()
        assert sum(length for length, _ in stages) <= max(matrix.sum(0).max(), matrix.sum(1).max())
    assert birkhoff_stages(np.zeros((nodes, nodes), int)) == []


def test_columns_of_routing_that_ride_with_a_row():
    assert [metadata_width(name, 8) for name in ("none", "flat", "flat_padded", "bruck", "low_latency")] == [
        0,
        1,
        1,
        1,
        1,
    ]
    shared = ("node_dedup", "multilevel_dedup", "allgather_reduce_scatter")
    assert [metadata_width(name, 8) for name in shared] == [8, 8, 8]
