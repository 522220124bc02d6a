"""Prices of exchanges: link directions, meshes, NICs, oversubscription, bytes of each wire dtype."""

import numpy as np
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.balance.placement import expert_map_of
from workbench.comm.payload import metadata_bytes
from workbench.comm.plan import byte_counts
from workbench.comm.strategies import make_plan
from workbench.run.simulated import run_simulated
from workbench.simulate.layer import exchange_legs
from workbench.simulate.loads import hop_load
from workbench.simulate.network import MESSAGE_US, all_reduce_us, count_exchange_us, link_rates, price_hop
from workbench.simulate.traffic import group_traffic
from workbench.spec.catalog import resolve_cluster
from workbench.spec.cluster import ClusterRef, Links
from workbench.spec.errors import Unsupported
from workbench.workload.traffic import route_all

NODES = np.repeat([0, 1], 2)


def linked(*, gpus=16, **links):
    return resolve_cluster(ClusterRef(hardware="h200-sxm", nodes=gpus // 8, gpus_per_node=8, links=Links(**links)))


def even(size: float, num_ranks: int = 4) -> np.ndarray:
    return np.full((num_ranks, num_ranks), size)


def load(rows, nodes=NODES):
    return hop_load("hop", rows, (rows > 0).astype(int), node_R=nodes)


def test_s08_links_are_priced_in_one_direction():
    cell = make_cell(
        None, scope={"kind": "all_to_all", "bytes_per_rank": 2**30}, cluster=cluster_of("h100-sxm", gpus=8),
        method="roofline",
    )  # fmt: skip
    record = run_simulated(cell).record
    assert run_simulated(cell.model_copy(update={"method": "best"})).record.latency_us > record.latency_us
    bound_us = 2**30 * 7 / 8 / 450e9 * 1e6
    assert bound_us == pytest.approx(2087.8, abs=0.1)
    assert bound_us <= record.latency_us < bound_us + 10
    assert record.busbw_gb_per_s <= 450


@pytest.mark.parametrize(("dtype", "row"), [("fp8_block", 7392), ("mxfp8", 7392), ("nvfp4", 4032 + 4), ("bf16", 14336)])
def test_n15_each_leg_is_priced_at_its_own_dtype(dtype, row):
    cell = make_cell(ep=16, dispatch={"dispatch_dtype": dtype, "combine_dtype": "bf16"})
    dispatch, combine = exchange_legs(cell, group_traffic(cell), links=link_rates(cell.cluster))
    assert dispatch[0].row_bytes == row + metadata_bytes("flat", 8)
    assert combine[0].row_bytes == 14336
    record = run_simulated(cell).record
    copies = 16 * 128 * 8
    assert record.logical_bytes == copies * ((4032 if dtype == "nvfp4" else row) + 14336)


@pytest.mark.parametrize("strategy", ["flat", "node_dedup"])
def test_bytes_are_those_of_the_plan(strategy):
    cell = make_cell(ep=16, dispatch={"strategy": strategy, "dispatch_dtype": "fp8_block"})
    traffic = route_all(cell)
    plan = make_plan(cell, traffic, expert_map_of(cell, traffic))
    row = 7392 + metadata_bytes(strategy, 8)
    out = byte_counts(plan, payload_bytes=7392, row_bytes=row)
    back = byte_counts(plan, payload_bytes=14336, row_bytes=14336)
    record = run_simulated(cell).record
    assert record.logical_bytes == out.logical + back.logical
    assert record.physical_bytes == out.physical + back.physical
    assert record.wire_bytes == out.wire + back.wire
    assert record.scale_up_bytes == out.scale_up + back.scale_up
    assert record.scale_out_bytes == out.scale_out + back.scale_out
    legs, _ = exchange_legs(cell, group_traffic(cell), links=link_rates(cell.cluster))
    for leg, (name, bytes_RR, _) in zip(legs, plan.traffic(row), strict=True):
        assert leg.name == f"dispatch.{name}"
        off_rank = bytes_RR.sum(axis=1) - np.diagonal(bytes_RR)
        np.testing.assert_allclose((leg.load.up_sent_R + leg.load.out_sent_R) * leg.row_bytes, off_rank)


def test_the_slowest_link_of_the_slowest_rank_decides():
    links = link_rates(cluster_of())
    rows = even(0)
    rows[0, 3] = 1e6
    cost = price_hop(load(rows), links, row_bytes=100)
    assert cost.total_us == pytest.approx(1e8 / 50e3 + links.out_latency_us)
    assert cost.rank_us_R.tolist() == [cost.total_us, 0, 0, cost.total_us]
    rows[1, 3] = 1e6
    incast = price_hop(load(rows), links, row_bytes=100)
    assert incast.total_us == pytest.approx(2e8 / 50e3 + links.out_latency_us)


def test_what_stays_on_the_gpu_is_read_and_written_beside_the_messages():
    links, rows = link_rates(cluster_of()), np.diag([1e6] * 4)
    cost = price_hop(load(rows), links, row_bytes=100)
    assert cost.total_us == pytest.approx(2 * 1e8 / 4.8e6)
    assert cost.latency_us == 0
    rows[0, 3] = 1e6
    assert price_hop(load(rows), links, row_bytes=100).total_us == pytest.approx(1e8 / 50e3 + links.out_latency_us)


def test_ranks_of_a_node_share_its_nic():
    """Each rank of node 0 sends 1e8 bytes to node 1, over a NIC of its own and through the node's."""
    rows = np.zeros((4, 4))
    rows[0, 2] = rows[1, 3] = 1e6
    own_us = 1e8 / 50e3

    def total_us(**links):
        return price_hop(load(rows), link_rates(linked(**links)), row_bytes=100).total_us - 5

    assert total_us() == pytest.approx(own_us)
    assert total_us(scale_out_node_gb_per_s=25) == pytest.approx(2e8 / 25e3)
    assert total_us(scale_out_node_gb_per_s=1000) == pytest.approx(own_us), "the ranks' own NICs bind"
    assert total_us(scale_out_node_gb_per_s=25, oversubscription=2) == pytest.approx(4e8 / 25e3)
    cost = price_hop(load(rows), link_rates(linked(scale_out_node_gb_per_s=25)), row_bytes=100)
    assert cost.node_sent_us_R.tolist() == [8000, 8000, 0, 0]
    assert cost.node_received_us_R.tolist() == [0, 0, 8000, 8000]
    inside = load(even(1e6), np.zeros(4, int))
    assert price_hop(inside, link_rates(linked(scale_out_node_gb_per_s=1)), row_bytes=1).total_us < 10


def test_a_shared_nic_slows_a_layer_and_is_part_of_the_cell():
    alone, shared = (
        run_simulated(make_cell(ep=16, cluster=linked(gpus=16, **links))).record
        for links in ({}, {"scale_out_node_gb_per_s": 34})
    )
    assert shared.dispatch_us > 5 * alone.dispatch_us
    assert shared.scale_out_bytes == alone.scale_out_bytes


def test_a_mesh_pair_has_one_link():
    mesh = link_rates(cluster_of("mi300x"))
    nodes = np.zeros(8, int)
    spread, hot = even(1e6, 8), np.zeros((8, 8))
    hot[0, 1] = spread[0].sum() - spread[0, 0]
    even_us = price_hop(load(spread, nodes), mesh, row_bytes=100).total_us
    hot_us = price_hop(load(hot, nodes), mesh, row_bytes=100).total_us
    assert hot_us / even_us == pytest.approx(7, rel=0.01)
    switch = link_rates(cluster_of("h200-sxm"))
    assert price_hop(load(hot, nodes), switch, row_bytes=100).total_us == pytest.approx(
        price_hop(load(spread, nodes), switch, row_bytes=100).total_us
    )


def test_oversubscription_slows_only_the_network_between_nodes():
    cluster = cluster_of()
    out = cluster.hardware.scale_out.model_copy(update={"oversubscription": 2.0})
    narrow = cluster.model_copy(update={"hardware": cluster.hardware.model_copy(update={"scale_out": out})})
    rows = even(1e6)
    wide_us = price_hop(load(rows), link_rates(cluster), row_bytes=100).total_us
    assert price_hop(load(rows), link_rates(narrow), row_bytes=100).total_us - 5 == pytest.approx(2 * (wide_us - 5))
    inside = load(rows, np.zeros(4, int))
    assert (
        price_hop(inside, link_rates(narrow), row_bytes=100).total_us
        == price_hop(inside, link_rates(cluster), row_bytes=100).total_us
    )


def test_many_small_messages_cost_their_number():
    links = link_rates(cluster_of())
    cost = price_hop(load(even(1, 512), np.arange(512) // 8), links, row_bytes=1)
    assert cost.total_us == pytest.approx(links.out_latency_us + 511 * MESSAGE_US)


def test_a_missing_link_is_unsupported_and_names_the_field():
    cell = make_cell("qwen3-30b-a3b", ep=4, cluster=cluster_of("rtx-4090", gpus=4, gpus_per_node=2))
    record = run_simulated(cell).record
    assert record.status == "unsupported"
    assert "scale_out_gb_per_s" in record.reason
    with pytest.raises(Unsupported, match="scale_out_gb_per_s"):
        price_hop(load(even(1)), link_rates(cell.cluster), row_bytes=1)


def test_one_rank_exchanges_nothing():
    links = link_rates(cluster_of())
    hop = load(even(5, 1), np.zeros(1, int))
    assert price_hop(hop, links, row_bytes=100).latency_us == 0
    assert count_exchange_us((hop,), links, node_R=np.zeros(1, int)) == 0
    assert all_reduce_us(1e9, num_ranks=1, links=links) == 0
    record = run_simulated(make_cell("qwen3-30b-a3b", ep=1)).record
    assert record.wire_bytes == 0
    bare = run_simulated(make_cell(None, ep=1, scope={"kind": "all_to_all", "bytes_per_rank": 1024})).record
    assert bare.status == "ok"
    assert bare.busbw_gb_per_s is None


def test_a_rack_is_one_scale_up_domain():
    rack = run_simulated(make_cell(ep=32, cluster=cluster_of("gb200-nvl72", gpus=32, gpus_per_node=4))).record
    boxes = run_simulated(make_cell(ep=32, cluster=cluster_of("b200-sxm", gpus=32))).record
    assert rack.scale_out_bytes == 0
    assert boxes.scale_out_bytes > 0
    assert rack.dispatch_us < boxes.dispatch_us


def test_messages_of_an_incast_queue_at_the_receiver():
    links, rows = link_rates(cluster_of()), np.zeros((512, 512))
    rows[1:, 0] = 1e-3
    cost = price_hop(load(rows, np.arange(512) // 8), links, row_bytes=1)
    assert cost.total_us == pytest.approx(links.out_latency_us + 511 * MESSAGE_US)
