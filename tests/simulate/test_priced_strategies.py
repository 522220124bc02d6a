"""Every strategy priced by its plan: bytes, rounds, carriers, padding, penalties, and where one beats another."""

from math import comb

import numpy as np
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.balance.placement import expert_map_of
from workbench.comm.hop import Hop, Round
from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.comm.plan import byte_counts
from workbench.comm.strategies import STRATEGIES, make_plan
from workbench.run.simulated import run_simulated
from workbench.simulate.layer import exchange_legs
from workbench.simulate.loads import load_of, plan_loads
from workbench.simulate.network import MESSAGE_US, count_exchange_us, link_rates, price_hop
from workbench.simulate.penalties import CROSS, PENALTIES, RAIL
from workbench.simulate.traffic import count_traffic, group_traffic
from workbench.spec.cluster import Links
from workbench.workload.traffic import route_all

NODES = np.repeat([0, 1], 2)
SENDING = [name for name in STRATEGIES if name != "none"]


def ok(**arguments):
    record = run_simulated(make_cell(**arguments)).record
    assert record.status == "ok", record.reason
    return record


def hop_of(counts, **how):
    counts = np.array(counts)
    return Hop("hop", tuple(np.zeros(n, np.int64) for n in counts.sum(axis=1)), counts, **how)


@pytest.mark.parametrize("strategy", SENDING)
def test_bytes_are_the_plans_whatever_the_strategy(strategy):
    cell = make_cell(ep=16, tokens=64, dispatch={"strategy": strategy, "dispatch_dtype": "fp8_block"})
    traffic = route_all(cell)
    plan = make_plan(cell, traffic, expert_map_of(cell, traffic))
    out_row, back_row = dispatch_row_bytes(cell), combine_row_bytes(cell)
    out = byte_counts(plan, payload_bytes=7392, row_bytes=out_row)
    back = byte_counts(plan, payload_bytes=14336, row_bytes=back_row)
    record = run_simulated(cell).record
    for name in ("logical", "physical", "wire"):
        assert getattr(record, f"{name}_bytes") == getattr(out, name) + getattr(back, name)
    assert (record.scale_up_bytes, record.scale_out_bytes) == (
        out.scale_up + back.scale_up,
        out.scale_out + back.scale_out,
    )
    counted = group_traffic(cell)
    assert counted.pairs_R.sum() == plan.pairs.slot.size
    assert counted.used_rows_R.sum() == len({*zip(plan.pairs.rank.tolist(), plan.pairs.row.tolist(), strict=True)})


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "low_latency"])
def test_every_strategy_is_priced_up_to_the_largest_group(strategy):
    record = ok(ep=512, tokens=4096, scope="train_step", dispatch={"strategy": strategy}, redundant=256)
    assert record.latency_us >= record.compute_us
    assert "sampled_tokens" in record.flags


def test_rounds_cost_the_sum_of_their_slowest_ranks():
    """Ranks 0 and 1 share a node, 2 and 3 the other; in every round somebody has 1000 rows, never the same one."""
    counts = np.full((4, 4), 10)
    counts[0, 1] = counts[1, 3] = counts[2, 1] = 1000
    rank = np.arange(4)
    rounds = tuple(Round((rank + s) % 4, counts[rank, (rank + s) % 4]) for s in (1, 2, 3))
    links = link_rates(cluster_of())
    load = load_of(hop_of(counts, carrier="point_to_point", rounds=rounds), node_R=NODES)
    cost = price_hop(load, links, row_bytes=1000)
    inside, between = 1000 * 1000 / 450e3, 1000 * 1000 / 50e3
    # round 1 carries 0 to 1 inside a node beside 10 rows between; rounds 2 and 3 cross
    first = max(inside, 10 * 1000 / 50e3)
    assert cost.total_us == pytest.approx(first + between + between + 3 * links.out_latency_us)
    at_once = price_hop(load_of(hop_of(counts), node_R=NODES), links, row_bytes=1000)
    assert at_once.total_us < cost.total_us
    assert cost.rank_us_R.max() <= cost.total_us
    assert price_hop(load.reverse, links, row_bytes=1000).total_us == cost.total_us


def test_a_round_waits_for_the_nic_of_its_fullest_node():
    counts = np.zeros((4, 4), int)
    counts[0, 2] = counts[1, 3] = 1000
    rounds = (Round(np.array([2, 3, -1, -1]), np.array([1000, 1000, 0, 0])),)
    links = link_rates(cluster_of())
    shared = type(links)(**(links.__dict__ | {"node_bytes_per_us": 25e3}))
    load = load_of(hop_of(counts, carrier="point_to_point", rounds=rounds), node_R=NODES)
    assert price_hop(load, links, row_bytes=1000).total_us == pytest.approx(20 + 5)
    assert price_hop(load, shared, row_bytes=1000).total_us == pytest.approx(80 + 5)


def test_a_message_a_row_is_held_to_the_message_rate_between_nodes():
    counts = np.full((4, 4), 500)
    links = link_rates(cluster_of())
    single = price_hop(load_of(hop_of(counts, carrier="per_row"), node_R=NODES), links, row_bytes=16)
    assert single.total_us == pytest.approx(1000 * MESSAGE_US + links.out_latency_us)
    blocks = price_hop(load_of(hop_of(counts), node_R=NODES), links, row_bytes=16)
    assert blocks.total_us < 6
    inside = price_hop(load_of(hop_of(counts, carrier="per_row"), node_R=np.zeros(4, int)), links, row_bytes=16)
    assert inside.total_us == pytest.approx(1500 * 16 / 450e3 + links.up_latency_us)


def test_counts_go_ahead_only_of_hops_that_are_not_announced():
    links, node_R = link_rates(cluster_of()), NODES
    hops = plan_loads((hop_of(np.ones((4, 4), int)), hop_of(np.ones((4, 4), int), announced=True)), node_R=node_R)
    one = count_exchange_us(hops[:1], links, node_R=node_R)
    assert one > links.out_latency_us
    assert count_exchange_us(hops, links, node_R=node_R) == one
    assert count_exchange_us(hops[1:], links, node_R=node_R) == 0
    assert ok(ep=16, dispatch={"strategy": "allgather_reduce_scatter"}).count_exchange_us == 0
    assert ok(ep=16, dispatch={"strategy": "two_dh"}).count_exchange_us == pytest.approx(
        2 * ok(ep=16).count_exchange_us
    )


def test_blocks_that_are_empty_are_no_messages():
    counts = np.zeros((4, 4), int)
    counts[0, 2] = 5
    load = load_of(hop_of(counts, carrier="point_to_point"), node_R=NODES)
    assert load.sent.messages_R.tolist() == [1, 0, 0, 0]
    assert load.received.messages_R.tolist() == [0, 0, 1, 0]


def test_padding_travels_and_is_not_computed():
    padded = make_cell(ep=16, tokens=64, dispatch={"strategy": "flat_padded"})
    flat = make_cell(ep=16, tokens=64)
    full, ragged = group_traffic(padded), group_traffic(flat)
    assert (full.pairs_R == ragged.pairs_R).all()
    assert (full.used_rows_R == ragged.used_rows_R).all()
    assert full.buffer_rows_R.sum() > 3 * ragged.buffer_rows_R.sum()
    assert run_simulated(padded).record.wire_bytes > 3 * run_simulated(flat).record.wire_bytes


def test_blocks_of_a_sampled_batch_are_padded_as_those_of_the_whole():
    cell = make_cell(ep=64, tokens=512, dispatch={"strategy": "flat_padded"})
    whole, sampled = count_traffic(cell, route_all(cell)), group_traffic(cell)
    assert sampled.scale > 4
    assert sampled.buffer_rows_R[0] == pytest.approx(whole.buffer_rows_R[0], rel=0.25)


def test_replicas_share_a_sampled_load_by_halves():
    """Each rank deals from a replica of its own on, which a sample of a few tokens must not make a skew of."""
    cell = make_cell(ep=512, tokens=4096, redundant=256, dispatch={"strategy": "node_dedup"})
    received_R = group_traffic(cell).hops[0].out_received_R
    assert received_R.max() < 1.3 * received_R.mean()


def test_passes_over_memory_and_copies_are_priced():
    flat, two = (make_cell(ep=16, tokens=4096, dispatch={"strategy": name}) for name in ("flat", "two_dh"))
    slow = cluster_of(gpus=16)
    slow = slow.model_copy(update={"hardware": slow.hardware.model_copy(update={"memory_tb_per_s": 0.1})})
    dear = [
        run_simulated(cell.model_copy(update={"cluster": slow})).record.dispatch_us
        - run_simulated(cell).record.dispatch_us
        for cell in (flat, two)
    ]
    assert dear[1] > 1.5 * dear[0] > 0


# Penalties


def on(*names, **links):
    return {"cluster": derated(names, **links)}


def derated(names, gpus=32, **links):
    cluster = cluster_of(gpus=gpus)
    out = cluster.hardware.scale_out.model_copy(update={"penalties": tuple(names), **links})
    return cluster.model_copy(update={"hardware": cluster.hardware.model_copy(update={"scale_out": out})})


@pytest.mark.parametrize("name", ["cross_rail", "small_messages", "incast"])
def test_a_penalty_slows_what_it_is_about_and_is_told(name):
    plain, slower = ok(ep=32, tokens=1024, **on()), ok(ep=32, tokens=1024, **on(name))
    assert slower.dispatch_us > 1.05 * plain.dispatch_us
    assert f"penalties={name}" in slower.flags
    assert "penalties" not in (plain.flags or "")
    assert slower.wire_bytes == plain.wire_bytes


def dispatch_us(strategy, *names):
    return ok(ep=32, tokens=1024, dispatch={"strategy": strategy}, **on(*names)).dispatch_us


def test_traffic_along_the_rails_is_spared_the_cross_rail_rate():
    assert dispatch_us("two_dh", "cross_rail") == dispatch_us("two_dh")
    assert dispatch_us("flat", "cross_rail") > 1.7 * dispatch_us("flat")


def test_rounds_are_spared_incast():
    assert dispatch_us("pairwise", "incast") == dispatch_us("pairwise")
    assert dispatch_us("flat", "incast") > 5 * dispatch_us("flat")


def test_published_points_come_back_from_the_message_classes():
    for klass, points in ((RAIL, {8192: 13.8, 4 * 2**20: 43.7}), (CROSS, {8192: 6.1, 4 * 2**20: 20.1})):
        for size, gb_per_s in points.items():
            assert size / (klass.alpha_us + size / (50e3 * klass.rate)) / 1e3 == pytest.approx(gb_per_s, rel=1e-6)


def test_inside_a_node_small_messages_are_the_parts_published_all_to_all():
    size = {"kind": "all_to_all", "bytes_per_rank": 2**24}
    cluster = derated(["small_messages"], gpus=8)
    fit = cluster.hardware.measured_all_to_all
    record = run_simulated(make_cell(None, ep=8, scope=size, cluster=cluster, method="roofline")).record
    assert record.latency_us == pytest.approx(fit.alpha_us + 2**24 / fit.algbw_gb_per_s / 1e3, rel=1e-3)


def test_every_switch_of_the_table_is_a_field():
    listed = {"cross_rail", "small_messages", "incast", "congestion"}
    for name, penalty in PENALTIES.items():
        field, _, value = penalty.switch.removeprefix("cluster.links.").partition(": ")
        assert field in Links.model_fields or field == "always"
        assert (name in listed) == (value == name)
        assert penalty.source


def test_links_table_breaks_a_hop_down():
    links = run_simulated(make_cell(ep=16, cluster=derated((), gpus=16, node_gb_per_s=34.0))).tables["links"]
    busy = {row["link"]: row["busy_us"] for row in links if row["link"].startswith("dispatch.all_to_all/")}
    parts = {name.split("/")[1] for name in busy}
    assert parts == {"scale_up", "scale_out", "own_copy", "node_nic", "messages", "latency"}
    cell = make_cell(ep=16, cluster=derated((), gpus=16, node_gb_per_s=34.0))
    (leg,), _ = exchange_legs(cell, group_traffic(cell), links=link_rates(cell.cluster))
    assert leg.cost.total_us == pytest.approx(max(busy.values()) + leg.cost.latency_us)
    assert max(leg.cost.parts_us, key=leg.cost.parts_us.get) == "node_nic"


# Which strategy wins where


def bare(size, strategy, gpus):
    how = {"scope": {"kind": "all_to_all", "bytes_per_rank": size}, "dispatch": {"strategy": strategy}}
    how |= {"method": "roofline"}
    return run_simulated(make_cell(None, ep=gpus, **how, **on("small_messages", gpus=gpus))).record.latency_us


def test_bruck_wins_for_tiny_payloads_of_many_ranks_only():
    """A message has to cost what small ones do: at 0.1 us for each of 511, nine rounds' latencies are no saving."""
    assert bare(2**14, "bruck", 512) < 0.5 * bare(2**14, "flat", 512)
    assert bare(2**27, "bruck", 512) > 2 * bare(2**27, "flat", 512)
    assert bare(2**14, "bruck", 16) > bare(2**14, "flat", 16), "few messages anyway"


def test_gathering_all_is_attractive_while_ranks_are_fewer_than_choices():
    def ratio(ep):
        pair = (ok(ep=ep, tokens=1024, dispatch={"strategy": s}) for s in ("allgather_reduce_scatter", "flat"))
        gathered, flat = (record.dispatch_us + record.combine_us + record.count_exchange_us for record in pair)
        return gathered / flat

    assert ratio(4) < 0.75
    assert ratio(64) > 1.5


@pytest.mark.parametrize("ep", [16, 32, 64])
def test_a_copy_a_node_beats_a_copy_an_expert_across_nodes(ep):
    flat, dedup = (
        ok(ep=ep, tokens=2048, dispatch={"strategy": name, "dispatch_dtype": "fp8_block"})
        for name in ("flat", "node_dedup")
    )
    assert dedup.dispatch_us < 0.8 * flat.dispatch_us
    assert dedup.combine_us < 0.8 * flat.combine_us


@pytest.mark.parametrize("ep", [16, 32, 64])
def test_rows_between_nodes_are_those_of_the_formula(ep):
    """D(N) distinct nodes a token of k choices among E experts on N nodes, (N - 1) / N of them elsewhere."""
    cell = make_cell(
        "qwen3-30b-a3b", ep=ep, tokens=1024, router="softmax_topk", dispatch={"strategy": "node_dedup"}, skew="uniform"
    )
    model, nodes = cell.model, ep // 8
    experts, k = model.num_experts, model.top_k
    distinct = nodes * (1 - comb(experts - experts // nodes, k) / comb(experts, k))
    rows = group_traffic(cell).hops[0].out_sent_R.sum()
    assert rows == pytest.approx(ep * 1024 * distinct * (nodes - 1) / nodes, rel=0.02)
