"""Groups counted by port: as those counted rank by rank where both can be, and cheap where only this can."""

import time
import tracemalloc

import numpy as np
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.run.simulated import run_simulated
from workbench.simulate import traffic as counting
from workbench.simulate.aggregate import PORTS
from workbench.simulate.layer import price_layer
from workbench.simulate.loads import even_load, hop_load
from workbench.simulate.traffic import group_traffic, part_traffics

POWER_LAW = {"kind": "power_law", "alpha": 1.2}


def both(cell, monkeypatch):
    """(traffic, priced layer) of the group counted rank by rank, and by port."""
    found = []
    for limit in (cell.ep, 1):
        monkeypatch.setattr(counting, "MAX_COUNTED_RANKS", limit)
        counting._cached.cache_clear()
        counting._cached_parts.cache_clear()
        traffic = group_traffic(cell)
        found.append((traffic, price_layer(cell, traffic, parts=part_traffics(cell))))
    return found


@pytest.mark.parametrize("skew", ["uniform", POWER_LAW], ids=["uniform", "power law"])
@pytest.mark.parametrize("strategy", [name for name in PORTS if name != "none"])
def test_by_port_as_rank_by_rank(strategy, skew, monkeypatch):
    cell = make_cell(ep=128, tokens=256, skew=skew, dispatch={"strategy": strategy}, cluster=cluster_of(gpus=128))
    (exact, slow), (ported, fast) = both(cell, monkeypatch)
    assert fast.latency_us == pytest.approx(slow.latency_us, rel=0.1)
    assert ported.pairs_R.max() == pytest.approx(exact.pairs_R.max(), rel=0.08)
    assert ported.pairs_R.sum() == pytest.approx(exact.pairs_R.sum(), rel=1e-9)
    for hop, port in zip(exact.hops, ported.hops, strict=True):
        assert port.name == hop.name
        assert port.sent_R.sum() == pytest.approx(hop.sent_R.sum(), rel=0.01)
        assert port.sent_R.sum() == pytest.approx(port.received_R.sum(), rel=1e-9)
        assert port.out_received_R.max() == pytest.approx(hop.out_received_R.max(), rel=0.12)
        assert port.up_received_R.sum() == pytest.approx(hop.up_received_R.sum(), rel=0.04)


def test_parts_of_a_large_group_add_up_to_it(monkeypatch):
    monkeypatch.setattr(counting, "MAX_COUNTED_RANKS", 8)
    cell = make_cell(ep=64, tokens=100, dispatch={"strategy": "flat", "overlap": {"kind": "chunk", "degree": 4}},
                     cluster=cluster_of(gpus=64))  # fmt: skip
    parts = part_traffics(cell)
    assert len(parts) == 4
    assert sum(part.pairs_R.sum() for part in parts) == pytest.approx(group_traffic(cell).pairs_R.sum())


@pytest.mark.parametrize("ranks", [1024, 10_240])
def test_a_group_of_ten_thousand_costs_little(ranks):
    """Half a second of a processor and a gigabyte are promised; here allocations are traced, on a busy machine."""
    small = make_cell(ep=16, cluster=cluster_of(gpus=16), skew=POWER_LAW)
    assert run_simulated(small).record.status == "ok"  # what the first cell of a process pays
    cell = make_cell(ep=ranks, tokens=4096, skew=POWER_LAW, placement="eplb", dispatch={"strategy": "node_dedup"},
                     cluster=cluster_of("h100-sxm", gpus=ranks), precision="fp8_block")  # fmt: skip
    tracemalloc.start()
    start = time.process_time()
    record = run_simulated(cell).record
    spent, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record.status == "ok", record.reason
    assert record.wire_bytes > 0
    assert spent < 2.0
    assert peak < 0.5e9


def test_a_strategy_that_is_not_counted_by_port_says_so():
    cell = make_cell(ep=1024, dispatch={"strategy": "two_dh"}, cluster=cluster_of(gpus=1024))
    record = run_simulated(cell).record
    assert record.status == "unsupported"
    assert "more than 512 ranks" in record.reason
    assert "node_dedup" in record.reason


@pytest.mark.parametrize("node_R", [np.arange(16) // 8, np.arange(12) // 5, np.zeros(4, np.int64)], ids=str)
def test_one_row_to_every_other_is_counted_without_the_matrix(node_R):
    ones_RR = np.ones((node_R.size, node_R.size))
    np.fill_diagonal(ones_RR, 0)
    exact, even = hop_load("counts", ones_RR, ones_RR, node_R=node_R), even_load("counts", node_R)
    for name in ("up_R", "rail_R", "cross_R", "up_messages_R", "rail_messages_R", "cross_messages_R", "out_peers_R"):
        np.testing.assert_allclose(getattr(even.sent, name), getattr(exact.sent, name), err_msg=name)
        np.testing.assert_allclose(getattr(even.received, name), getattr(exact.received, name), err_msg=name)
    np.testing.assert_allclose(even.peer_R, exact.peer_R)
