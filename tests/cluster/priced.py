"""Dispatch plans priced on shaped hosts: whose link is shared by the ranks of a host, and carries full frames."""

import numpy as np

from workbench.comm.hop import Hop
from workbench.comm.plan import DispatchPlan
from workbench.simulate.network import LinkRates, hop_load, price_hop

INSIDE_GB_PER_S = 1.0
"""Rank to rank inside a host, over gloo: the catalog's figure for the processor at hand."""


def leg_s(plan: DispatchPlan, *, row_bytes: int, host_gb_per_s: float, back: bool) -> float:
    """Seconds of all hops of a plan, one after the other; ``back``: of combine, which sends the rows the other way."""
    return sum(_hop_s(hop, plan, row_bytes, host_gb_per_s, back) for hop in plan.hops)


def _hop_s(hop: Hop, plan: DispatchPlan, row_bytes: int, host_gb_per_s: float, back: bool) -> float:
    """Rounds follow one another on every rank; each costs what its slowest host, or rank inside one, needs."""
    steps = [counts.T if back else counts for counts in hop.round_counts()]
    return sum(
        max(
            _exchange_s(_between_hosts(counts, plan.topology.node_of), row_bytes, host_gb_per_s),
            _exchange_s(np.where(_same_host(plan), counts, 0), row_bytes, INSIDE_GB_PER_S),
        )
        for counts in steps
    )


def _exchange_s(rows: np.ndarray, row_bytes: int, gb_per_s: float) -> float:
    """Seconds in which every row and every column of ``rows`` [n, n] passes its own port."""
    ports = np.arange(len(rows))
    links = LinkRates(
        up_bytes_per_us=gb_per_s * 1e3,
        peer_bytes_per_us=None,
        out_bytes_per_us=gb_per_s * 1e3,
        up_latency_us=0.0,
        out_latency_us=0.0,
    )
    messages = (rows > 0).astype(np.int64)
    return price_hop(hop_load("exchange", rows, messages, node_R=ports), links, row_bytes=row_bytes).total_us / 1e6


def _between_hosts(counts: np.ndarray, host_of: np.ndarray) -> np.ndarray:
    hosts = int(host_of.max()) + 1
    between = np.zeros((hosts, hosts), np.int64)
    np.add.at(between, (host_of[:, None], host_of[None, :]), counts)
    np.fill_diagonal(between, 0)
    return between


def _same_host(plan: DispatchPlan) -> np.ndarray:
    host_of = plan.topology.node_of
    return (host_of[:, None] == host_of[None, :]) & ~np.eye(len(host_of), dtype=bool)
