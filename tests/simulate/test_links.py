"""Links as measured: curves over bytes, the plan's hops streamed, parts without rows, what the record says of them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.comm.payload import dispatch_row_bytes
from workbench.run.fit_links import fit_bands
from workbench.run.simulated import run_simulated
from workbench.simulate.bare import bare_cost
from workbench.simulate.collectives import measured_parts, nccl_curve, nccl_rows
from workbench.simulate.curves import left_out, size_curve
from workbench.simulate.even import linear_loads, two_dh_loads
from workbench.simulate.fabric import deepep_rows, fit_fabric, reference_fabric
from workbench.simulate.link_rates import link_rates
from workbench.simulate.links import BANDS, collective_links, links_of, streamed_links
from workbench.simulate.loads import hop_load
from workbench.simulate.network import band_us, price_hop, price_hops
from workbench.simulate.penalties import CONGESTION
from workbench.simulate.traffic import group_traffic
from workbench.spec.catalog import load_hardware, names, resolve_cluster
from workbench.spec.cluster import ClusterRef, Links

ALL_TO_ALL = {"kind": "all_to_all", "bytes_per_rank": 2**24}


def test_a_curve_goes_through_its_points_and_on_behind_them():
    curve = size_curve([100, 300, 200], [10, 30, 14])
    assert curve.at(np.array([0, 100, 150, 300, 400])).tolist() == [10, 10, 12, 30, 46]
    assert curve.busy_us(100.0) == 0
    faster = curve.on_links(2.0)
    assert faster.floor_us == 10
    assert faster.at(400.0) == curve.at(200.0)


def test_more_bytes_never_take_less_time():
    curve = size_curve([1, 2, 3, 4], [10, 16, 8, 20])
    assert curve.us == (10, 12, 12, 20)
    for hardware in measured_parts():
        for count in (2, 4, 8):
            assert np.diff(nccl_curve(hardware, "alltoall", count).us).min() >= 0


def test_a_point_left_out_does_not_count():
    sizes, us = np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 12.0, 30.0, 16.0])
    given, ends = left_out(sizes, us)
    assert given[2] == 14
    assert ends.tolist() == [True, False, False, True]
    assert left_out(sizes, np.where(sizes == 3, 1e6, us))[0][2] == 14


def test_nccl_inside_a_node_comes_back_as_published():
    rows = nccl_rows()
    row = rows[(rows.hardware == "h200-sxm") & (rows.op == "alltoall") & (rows.num_gpus == 8) & (rows.bytes == 2**24)]
    record = run_simulated(make_cell(None, ep=8, scope=ALL_TO_ALL)).record
    assert record.latency_us == pytest.approx(float(row.us.iloc[0]), rel=1e-6)
    assert record.method == "published"
    assert record.band_low_us < record.latency_us < record.band_high_us
    assert record.busbw_gb_per_s < 450


def test_a_gather_and_a_scatter_have_curves_of_their_own():
    cell = make_cell(ep=8, tokens=1024, dispatch={"strategy": "allgather_reduce_scatter"})
    links, (hop,) = links_of(cell), group_traffic(cell).hops
    row = dispatch_row_bytes(cell)
    for rates, load, op in ((links.out, hop, "all_gather"), (links.back, hop.reverse, "reduce_scatter")):
        us = price_hop(load, rates, row_bytes=row).total_us
        assert us == pytest.approx(float(nccl_curve("h200-sxm", op, 8).at(8 * 1024 * row)), rel=1e-6)


def test_deepep_on_two_nodes_comes_back_from_its_constants():
    """What the constants were made of, through plan and network; four nodes are a line of validate."""
    cell = make_cell({"base": "deepseek-v3", "router": {"kind": "softmax_topk"}}, ep=16, tokens=4096,
                     dispatch={"strategy": "node_dedup", "dispatch_dtype": "fp8_block"})  # fmt: skip
    rows = deepep_rows().query("nodes == 2 and sms == 20 and num_tokens == 4096 and mode == 'normal'").set_index("op")
    record = run_simulated(cell).record
    assert record.dispatch_us == pytest.approx(rows.us["dispatch"], rel=0.05)
    assert record.combine_us == pytest.approx(rows.us["combine"], rel=0.05)
    assert record.count_exchange_us == 0, "it is in the kernel's time"


def test_constants_are_refused_rows_of_more_nodes():
    with pytest.raises(ValueError, match="one and two nodes"):
        fit_fabric(deepep_rows())


def test_streamed_hops_take_their_slowest_link_and_not_the_sum():
    cell = make_cell(ep=32, tokens=4096, dispatch={"strategy": "node_dedup", "dispatch_dtype": "fp8_block"})
    hops, links = group_traffic(cell).hops, links_of(cell).out
    streamed = sum(cost.total_us for cost in price_hops(hops, links, row_bytes=7456))
    apart = price_hops(hops, replace(links, copied=None), row_bytes=7456)
    assert max(cost.total_us for cost in apart) < streamed < 0.9 * sum(cost.total_us for cost in apart)
    slower = replace(links, copied=links.copied.on_links(0.1))
    assert sum(cost.total_us for cost in price_hops(hops, slower, row_bytes=7456)) > 3 * streamed
    nic_us = max(cost.out_sent_us_R.max() for cost in apart)
    waited = links.out_latency_us + nic_us + links.barrier_us
    assert streamed == pytest.approx(waited, rel=0.05), "on four nodes the NIC decides, after two rounds of a barrier"


def test_more_sms_copy_faster():
    hop = hop_load("scale_up", np.full((8, 8), 1e4), np.ones((8, 8)), node_R=np.zeros(8, int))
    us = {
        sms: price_hops([hop], streamed_links(cluster_of(), far=False, num_sms=sms).out, row_bytes=7456)[0].total_us
        for sms in (8, 24)
    }
    assert us[8] > 1.5 * us[24]
    priced = run_simulated(make_cell(ep=8, dispatch={"strategy": "node_dedup", "comm_sms": 8})).record
    assert "comm_sms_not_priced" not in priced.flags
    assert "comm_sms_not_priced" in run_simulated(make_cell(ep=8, dispatch={"comm_sms": 8})).record.flags


def test_a_hot_pair_of_a_mesh_has_a_seventh_as_measured_too():
    links = collective_links(cluster_of("mi300x"), num_ranks=8)
    assert "unvalidated_links" in links.flags
    nodes, spread, hot = np.zeros(8, int), np.full((8, 8), 1e6), np.zeros((8, 8))
    hot[0, 1] = 7e6
    even_us, hot_us = (
        price_hop(hop_load("hop", rows, np.sign(rows), node_R=nodes), links.out, row_bytes=100).total_us
        for rows in (spread, hot)
    )
    assert hot_us / even_us == pytest.approx(7, rel=0.05)


@pytest.mark.parametrize("name", [name for name in names("hardware") if name not in ("cpu", "rtx-4090")])
def test_every_part_has_links_that_are_slower_than_its_data_sheet(name):
    part = load_hardware(name)
    cell = make_cell(None, ep=8, scope=ALL_TO_ALL, cluster=cluster_of(part, gpus=8))
    best, sheet = (run_simulated(cell.model_copy(update={"method": method})).record for method in ("best", "roofline"))
    if "pcie" in part.scale_up.topology and part.measured_all_to_all is None:
        assert best.method == "roofline"
        return
    assert best.latency_us > sheet.latency_us
    assert best.method == ("published" if name in measured_parts() else "calibrated")
    assert best.band_low_us < best.latency_us < best.band_high_us


def test_a_part_without_rows_takes_those_of_its_architecture():
    for name, source in (("gb200-nvl72", "b200-sxm"), ("h800-sxm", "h100-sxm"), ("mi300x", "h100-sxm")):
        cell = make_cell(ep=8, cluster=cluster_of(name), dispatch={"strategy": "low_latency"})
        links = links_of(cell)
        assert f"links_of={source}" in links.flags
        assert links.out.method == "calibrated"
        own = links_of(make_cell(ep=8, cluster=cluster_of(source), dispatch={"strategy": "low_latency"})).out
        assert links.out.band[0] < own.band[0] < own.band[1] < links.out.band[1]
    assert links_of(make_cell(ep=8, cluster=cluster_of("b200-sxm"))).flags == ()


def test_leaf_switches_narrow_only_what_leaves_them():
    def us(nodes, **links):
        ref = ClusterRef(hardware="h200-sxm", nodes=nodes, gpus_per_node=8, links=Links(**links))
        (load,) = linear_loads(8 * nodes, 8)
        return price_hop(load, link_rates(resolve_cluster(ref)), row_bytes=1e7).total_us - 5

    assert us(4, oversubscription=2, leaf_nodes=4) == pytest.approx(us(4))
    assert us(8, oversubscription=2, leaf_nodes=4) == pytest.approx(us(8) * 2 * 4 / 7)
    assert us(8, oversubscription=1.5, leaf_nodes=4) == pytest.approx(us(8)), "4 of 7 nodes are behind the spine"
    assert us(1, oversubscription=2, leaf_nodes=4) == us(1)
    assert us(8, oversubscription=2) == pytest.approx(2 * us(8))
    assert us(8, penalties=("congestion",)) == pytest.approx(us(8) / CONGESTION**2)
    assert 0.98 < CONGESTION < 0.99


@pytest.mark.parametrize(("strategy", "loads"), [("flat", linear_loads), ("two_dh", two_dh_loads)])
def test_even_loads_are_those_of_the_plan(strategy, loads):
    cell = make_cell(None, ep=32, scope=ALL_TO_ALL, dispatch={"strategy": strategy})
    links, legs = links_of(cell).out, bare_cost(cell).legs
    costs = price_hops(loads(32, 8), links, row_bytes=2**24 / 32)
    assert [cost.total_us for cost in costs] == pytest.approx([leg.cost.total_us for leg in legs])
    for load, leg in zip(loads(32, 8), legs, strict=True):
        for name in ("sent_R", "packed_R", "peer_R"):
            np.testing.assert_allclose(getattr(load, name), getattr(leg.load, name))
    with pytest.raises(ValueError, match="do not fill"):
        loads(12, 8)


def test_the_band_covers_experts_and_messages():
    record = run_simulated(make_cell(ep=16, tokens=1024)).record
    assert "messages=calibrated" in record.flags
    alone = run_simulated(make_cell(ep=1, tokens=1024, redundant=0)).record
    assert "messages=" not in alone.flags
    cell = make_cell(ep=16, tokens=1024)
    hops, links = group_traffic(cell).hops, links_of(cell).out
    costs = price_hops(hops, links, row_bytes=100)
    low, high = band_us(costs)
    assert low == pytest.approx((links.band[0] - 1) * sum(cost.total_us for cost in costs))
    assert low < 0 < high
    assert band_us(price_hops(hops, link_rates(cell.cluster), row_bytes=100)) == (0, 0)


def test_bands_are_those_of_the_tables():
    assert json.loads(BANDS.read_text()) == fit_bands()


def test_barrier_and_share_of_the_nic_are_as_published():
    for way in (reference_fabric().dispatch, reference_fabric().combine):
        assert 0.9 < way.nic_share < 1
        assert 15 < way.barrier_us < 45
