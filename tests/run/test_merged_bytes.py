"""Bandwidths, legs, clocks and impossible figures, on reports made by hand."""

from dataclasses import replace

import pytest

from tests.run.rank_gang import cell
from workbench.run.measured import merge_reports
from workbench.run.merged_bytes import above_link, bandwidth_fields, leg_fields
from workbench.run.report import Leg, RankReport
from workbench.spec.cluster import ScaleOut, ScaleUp
from workbench.spec.scenario import AllToAllScope


def leg(name: str, link: str, us: float, *, up: int = 0, out: int = 0, received: int | None = None) -> Leg:
    sent = {"self": 0, "scale_up": up, "scale_out": out}
    return Leg(name, link, us, sent=sent, received=sent if received is None else sent | {"scale_out": received})


def reports(*legs_of_ranks, **fields) -> list[RankReport]:
    return [RankReport(rank, legs=legs, **fields) for rank, legs in enumerate(legs_of_ranks)]


def on_gpus(one, *, up: float = 100.0, out: float = 10.0, node: float | None = None):
    hardware = one.cluster.hardware.model_copy(
        update={
            "device": "cuda",
            "scale_up": ScaleUp(gb_per_s=up, domain=8, topology="switch"),
            "scale_out": ScaleOut(gb_per_s=out, node_gb_per_s=node),
        }
    )
    return one.model_copy(update={"cluster": one.cluster.model_copy(update={"hardware": hardware, "device": "cuda"})})


def test_legs_add_up_by_link_and_each_waits_for_its_slowest_rank():
    found = leg_fields(
        reports(
            (leg("dispatch.scale_out", "scale_out", 10), leg("dispatch.scale_up", "scale_up", 3)),
            (leg("dispatch.scale_out", "scale_out", 12), leg("dispatch.scale_up", "scale_up", 1)),
        )
    )
    assert found == {"scale_up_us": 3, "scale_out_us": 12}
    assert leg_fields(reports((), ())) == {"scale_up_us": None, "scale_out_us": None}


def test_a_layers_bandwidth_is_of_its_dispatch_and_its_heaviest_rank():
    """Rank 1 receives 4000 bytes in the 2 us of the slower rank: 2 GB/s; combine and backward are left out."""
    ways = [leg("combine.x", "scale_out", 90, out=10**6), leg("dispatch.backward.x", "scale_out", 90, out=10**6)]
    found = bandwidth_fields(
        cell(),
        reports(
            (leg("dispatch.x", "scale_out", 2, out=3000, received=1000), *ways),
            (leg("dispatch.x", "scale_out", 1, out=1000, received=4000), *ways),
        ),
        latency_us=1e9,
    )
    assert found == {"algbw_gb_per_s": pytest.approx(2.0), "busbw_gb_per_s": pytest.approx(1.0)}


def test_n06_bandwidth_of_a_bare_exchange_is_of_its_buffer_and_latency():
    one = cell(ranks=8, scope=AllToAllScope(kind="all_to_all", bytes_per_rank=64 * 2**20))
    found = bandwidth_fields(one, reports(*[()] * 8, activation_bytes=64 * 2**20), latency_us=1000.0)
    assert found["algbw_gb_per_s"] == pytest.approx(67.1089, abs=1e-4)
    assert found["busbw_gb_per_s"] == pytest.approx(58.7203, abs=1e-4)


@pytest.mark.parametrize(
    ("one_leg", "flags"),
    [
        (leg("dispatch.x", "scale_out", 100, out=10**6), []),  # 10 GB/s, all there is
        (leg("dispatch.x", "scale_out", 99, out=10**6), ["above_link"]),
        (leg("dispatch.x", "scale_out", 99, received=10**6), ["above_link"]),
        (leg("dispatch.x", "scale_up", 9, up=10**6), ["above_link"]),
        (leg("dispatch.x", "scale_up", 11, up=10**6), []),
    ],
)
def test_more_than_the_link_carries_is_flagged(one_leg, flags):
    one = on_gpus(cell())
    assert above_link(one, reports((one_leg,), (one_leg,)), latency_us=1e9) == flags
    assert above_link(cell(), reports((one_leg,), (one_leg,)), latency_us=1e9) == []


def test_ranks_of_a_node_share_its_port():
    """Two nodes of two ranks, 6 GB/s a rank: within each NIC's 10, above a port of 10 for both of a node."""
    one_leg = leg("dispatch.x", "scale_out", 100, out=6 * 10**5)
    four = reports(*[(one_leg,)] * 4)
    assert above_link(on_gpus(cell()), four, latency_us=1e9) == []
    assert above_link(on_gpus(cell(), node=12.5), four, latency_us=1e9) == []
    assert above_link(on_gpus(cell(), node=10.0), four, latency_us=1e9) == ["above_link"]


def test_the_whole_pass_may_not_beat_the_links_either():
    one, sent = on_gpus(cell()), {"scale_out": 10**6, "self": 10**9}
    assert above_link(one, reports((), (), wire=sent), latency_us=99.0) == ["above_link"]
    assert above_link(one, reports((), (), wire=sent), latency_us=101.0) == []


def test_self_traffic_makes_no_bandwidth_of_a_link():
    """DeepEP#51: what stays on its rank counted as if it had crossed the network."""
    one, staying = on_gpus(cell()), {"self": 10**9, "scale_up": 0, "scale_out": 0}
    legs = (Leg("dispatch.x", "scale_out", 1.0, sent=staying, received=staying),)
    assert above_link(one, reports(legs, legs, wire=staying), latency_us=1.0) == []


def test_every_clock_has_its_column_and_the_timer_says_which_is_the_latency():
    ranks = reports((), (), samples_us=(10.0, 12.0, 11.0), timer="event", kernel_us=8.0, wall_us=31.0)
    ranks[1] = replace(ranks[1], kernel_us=9.0, wall_us=30.0)
    record = merge_reports(cell(), ranks).record
    assert (record.latency_us, record.timer) == (11.0, "event")
    assert (record.event_us, record.kernel_us, record.wall_us) == (11.0, 9.0, 31.0)


def test_percentiles_are_of_the_slowest_rank_of_each_iteration():
    """Ranks that take turns to be slow: every iteration has one, though each rank is fast in the median."""
    slow, fast = 100.0, 10.0
    times = [tuple(slow if iteration % 4 == rank else fast for iteration in range(100)) for rank in range(4)]
    ranks = [RankReport(rank, samples_us=samples) for rank, samples in enumerate(times)]
    record = merge_reports(cell(), ranks).record
    assert record.latency_us == record.latency_p95_us == record.latency_p99_us == slow
    assert record.rank_min_us == record.rank_max_us == fast
