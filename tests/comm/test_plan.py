"""Plans: every pair arrives once where its expert is, whatever the topology; and traffic adds up."""

import math

import numpy as np
import pytest
import torch

from tests.workload.factory import make_cell
from workbench.balance.placement import expert_map_of
from workbench.comm.oracle import expected_buffer, misdelivered, origins
from workbench.comm.plan import byte_counts
from workbench.comm.rank_plan import metadata_rows
from workbench.comm.strategies import STRATEGIES, make_plan
from workbench.comm.topology import Topology, topology_of
from workbench.spec.dispatch import Dispatch
from workbench.workload.traffic import route_all

EXCHANGES = tuple(name for name in STRATEGIES if name != "none")


def planned(strategy, slots, weights, slots_per_rank, topology, **options):
    tokens_R = (slots.shape[1],) * slots.shape[0]
    call = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return STRATEGIES[strategy](slots, weights, **call, **options)


def routed(ranks, tokens, top_k, slots_per_rank, *, seed=0, dropped=0.1):
    """Distinct slots a token, some dropped; rank 1 sends nothing and the last rank gets nothing."""
    rng = np.random.default_rng(seed)
    total = ranks * slots_per_rank
    slots = np.argsort(rng.random((ranks, tokens, total)), axis=2)[..., :top_k].astype(np.int32)
    slots[rng.random(slots.shape) < dropped] = -1
    if ranks > 2:
        slots[1] = -1
        slots[slots >= total - slots_per_rank] = -1
    return slots, rng.random(slots.shape).astype(np.float32)


@pytest.mark.parametrize("strategy", EXCHANGES)
@pytest.mark.parametrize(
    ("ranks", "per_node", "tokens", "top_k", "slots"),
    [(4, 2, 9, 3, 2), (6, 4, 7, 4, 2), (8, 8, 5, 6, 1), (5, 1, 6, 2, 3), (1, 1, 4, 2, 4), (4, 2, 0, 2, 2)],
)
def test_every_pair_arrives_once_at_its_slot(strategy, ranks, per_node, tokens, top_k, slots):
    ids, weights = routed(ranks, tokens, top_k, slots)
    plan = planned(strategy, ids, weights, slots, Topology(ranks, per_node))
    assert misdelivered(plan, ids, weights) == []
    assert plan.slot_loads().ravel().tolist() == np.bincount(ids[ids >= 0], minlength=ranks * slots).tolist()


def test_a_lost_or_swapped_pair_is_seen():
    ids, weights = routed(4, 9, 3, 2)
    plan = planned("flat", ids, weights, 2, Topology(4, 2))
    changed = weights.copy()
    changed[ids >= 0] += 0.5
    assert misdelivered(plan, ids, changed)
    fewer = ids.copy()
    fewer[0, 0] = -1
    assert "pairs arrive" in misdelivered(plan, fewer, weights)[0]


@pytest.mark.parametrize("strategy", EXCHANGES)
def test_hops_carried_by_hand_give_the_oracles_buffers(strategy):
    """Messages moved one by one, without the plan's own tracing."""
    ids, weights = routed(6, 7, 4, 2)
    plan = planned(strategy, ids, weights, 2, Topology(6, 4))
    tokens = [
        torch.randint(0, 256, (7, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(r)) for r in range(6)
    ]
    buffers = tokens
    for number, hop in enumerate(plan.hops):
        inbox = [[] for _ in range(6)]
        for source in range(6):
            with_padding = torch.cat([buffers[source], torch.zeros(1, buffers[source].shape[1], dtype=torch.uint8)])
            rows = with_padding[torch.from_numpy(hop.send_rows[source])]  # PADDING is the last
            if number == 0:
                metadata = torch.from_numpy(metadata_rows(plan, source))
                copies = len(rows) // max(1, len(metadata))  # of a block that is gathered
                rows = torch.cat([rows, metadata.repeat(copies, 1)], dim=1)
            for target, block in enumerate(rows.split(hop.send_counts[source].tolist())):
                inbox[target].append(block)
        buffers = [torch.cat(blocks) for blocks in inbox]
    for rank in range(6):
        assert torch.equal(buffers[rank], expected_buffer(plan, rank, tokens))
        assert buffers[rank].shape[0] == plan.num_rows(rank)


def test_flat_arrives_by_source_and_then_by_slot():
    ids, weights = routed(4, 9, 3, 2)
    plan = planned("flat", ids, weights, 2, Topology(4, 2))
    for rank in range(4):
        source, _, _ = origins(plan, rank)
        arrivals = plan.arrivals[rank]
        assert arrivals.rows.tolist() == list(range(plan.num_rows(rank)))
        keys = source * 2 + arrivals.slots
        assert (np.diff(keys) >= 0).all()


def test_node_dedup_crosses_once_per_node_and_stays_on_its_rail():
    ids, weights = routed(8, 20, 6, 4, dropped=0.0)
    topology = Topology(8, 4)
    plan = planned("node_dedup", ids, weights, 4, topology)
    across, inside = plan.hops
    masks = topology.link_masks()
    rails = np.arange(8) % 4
    assert not across.send_counts[rails[:, None] != rails[None, :]].any()
    assert not inside.send_counts[masks["scale_out"]].any()
    nodes = np.where(ids >= 0, ids // 16, -1)
    copies = sum(np.unique(token[token >= 0]).size for token in nodes.reshape(-1, 6))
    assert across.send_counts.sum() == copies
    owners = np.where(ids >= 0, ids // 4, -1)
    assert inside.send_counts.sum() == sum(np.unique(token[token >= 0]).size for token in owners.reshape(-1, 6))


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_node_dedup_scale_out_bytes_follow_the_formula(nodes):
    """T * m * D(N) * (N - 1) / N a rank, D(N) = N * (1 - C(E - E/N, k) / C(E, k)); COMM's distinct-groups formula."""
    experts, top_k, tokens, ranks = 256, 8, 256, 4 * nodes
    cell = make_cell(ranks=ranks, tokens=tokens, experts=experts, top_k=top_k, gpus_per_node=4,
                     dispatch=Dispatch(strategy="node_dedup"))  # fmt: skip
    traffic = route_all(cell)
    plan = make_plan(cell, traffic, expert_map_of(cell, traffic))
    distinct = nodes * (1 - math.comb(experts - experts // nodes, top_k) / math.comb(experts, top_k))
    expected = ranks * tokens * 1000 * distinct * (nodes - 1) / nodes
    counted = byte_counts(plan, payload_bytes=1000, row_bytes=1000)
    copies = ranks * tokens
    sigma = 1000 * math.sqrt(copies * nodes)  # looser than the true spread, whose copies exclude one another
    assert abs(counted.scale_out - expected) < 4 * sigma
    assert abs(counted.scale_out - expected) < 0.02 * expected
    assert counted.logical == copies * top_k * 1000


def test_traffic_of_combine_is_the_transpose():
    ids, weights = routed(6, 7, 4, 2)
    plan = planned("node_dedup", ids, weights, 2, Topology(6, 4))
    there, back = plan.traffic(10), plan.combine_traffic(7)
    assert [name for name, _, _ in there] == [name for name, _, _ in reversed(back)]
    for (_, sent, messages), (_, returned, answers) in zip(there, reversed(back), strict=True):
        np.testing.assert_array_equal(sent // 10, returned.T // 7)
        np.testing.assert_array_equal(messages, answers.T)
        assert not messages.diagonal().any()


def test_byte_counts_split_by_link():
    slots = np.array([[[0, 2, 3]], [[0, 1, -1]], [[2, 3, 1]], [[3, 0, 1]]], np.int32)
    weights = np.ones(slots.shape, np.float32)
    flat = planned("flat", slots, weights, 1, Topology(4, 2))
    counted = byte_counts(flat, payload_bytes=100, row_bytes=108)
    # stays: 0->0, 1->1, 2->2, 3->3; in node: 1->0, 2->3; across: 0->2, 0->3, 2->1, 3->0, 3->1
    assert (counted.logical, counted.physical, counted.wire) == (1100, 700, 756)
    assert (counted.scale_up, counted.scale_out) == (216, 540)
    dedup = planned("node_dedup", slots, weights, 1, Topology(4, 2))
    counted = byte_counts(dedup, payload_bytes=100, row_bytes=100)
    assert counted.logical == 1100
    assert counted.scale_out == 300  # one copy a (token, other node): tokens 0, 2 and 3


def test_none_keeps_every_token_and_every_pair():
    ids, weights = routed(4, 9, 3, 2, dropped=0.0)
    plan = planned("none", ids, weights, 2, Topology(4, 2))
    assert plan.hops == ()
    assert plan.traffic(10) == []
    assert sum(a.rows.size for a in plan.arrivals) == (ids >= 0).sum()
    alone, weights = routed(1, 9, 3, 4)
    plan = planned("none", alone, weights, 4, Topology(1, 1))
    assert misdelivered(plan, alone, weights) == []


def test_topology_of_a_cell():
    assert topology_of(make_cell(ranks=4, gpus_per_node=2)) == Topology(4, 2)
    assert topology_of(make_cell(ranks=2, gpus_per_node=8)) == Topology(2, 2)
    assert topology_of(make_cell(ranks=4, gpus_per_node=8, tp=2)) == Topology(4, 4)
    assert topology_of(make_cell(ranks=4, gpus_per_node=4, tp=2)) == Topology(4, 2)
    assert topology_of(make_cell(ranks=36, gpus_per_node=4, domain=72, device="cuda")) == Topology(36, 36, inner=(4,))
    assert topology_of(make_cell(ranks=8, gpus_per_node=4, domain=8, device="cuda")) == Topology(8, 4)
    topology = Topology(6, 4)
    assert [topology.link(1, peer) for peer in (1, 0, 5)] == ["self", "scale_up", "scale_out"]
    assert topology.num_nodes == 2
