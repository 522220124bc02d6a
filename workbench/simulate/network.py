"""Time of one exchange: a plan's bytes and messages on a cluster's links, the slowest rank deciding.

R ranks. A hop costs latency + max over ranks of max(scale-up out, scale-up in, NIC out, NIC in, the node's NIC out and
in, messages / rate, own copy), the cost model of DeepEP-style analyses: links are full duplex, so out and in do not add
up. What a rank sends to itself is copied through its memory meanwhile. On a mesh one pair of GPUs has only
``per_peer_gb_per_s``.

Messages are those of the plan: one for each block that holds rows, whether one collective carries the blocks or each
goes by itself; a row where rows go one by one. An all-gather is priced as its blocks sent one by one to every rank
that gets them, which is also what a ring moves through each link. Padding travels like any row.

Rounds follow one another for all ranks at once: a hop in rounds costs the sum of its rounds, each with its latency and
its slowest rank. Ranks really wait for their own peer alone, so this is the most that skew can add up to.

Hops follow one another without gaps, unless the strategy streams rows through them (``LinkRates.copied``): then the
slowest of their links and of the SMs that copy between them decides.

Idealised by data sheet: links reach their rate at every message size, nothing else uses the network, and rails never
collide. What takes a network off that is in ``penalties``; ``links`` has the rates and latencies that were measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2

import numpy as np

from workbench.simulate.link_rates import LinkRates, link_rates
from workbench.simulate.loads import HopLoad, PortLoad, RoundLoads, even_load
from workbench.spec.errors import Unsupported

__all__ = [
    "HopCost",
    "LinkRates",
    "all_reduce_us",
    "band_us",
    "count_exchange_us",
    "link_rates",
    "price_hop",
    "price_hops",
]

MESSAGE_US = 0.1
"""Assumed cost of starting one message, 10 million a second for each GPU; messages overlap with bytes."""

COUNT_BYTES = 8
UP_FIELD, OUT_FIELD = "cluster.links.scale_up_gb_per_s", "cluster.links.scale_out_gb_per_s"


@dataclass(frozen=True)
class HopCost:
    """Microseconds of a hop: each rank's links [R], node NICs by rank [R], and the hop as a whole.

    ``rank_us_R`` is a rank's own time with its latencies, ``total_us`` the latencies and the slowest rank; of a hop
    that streams into the next, what it adds to the hops before it. ``method`` and ``band`` are those of the links.
    """

    name: str
    up_sent_us_R: np.ndarray
    up_received_us_R: np.ndarray
    out_sent_us_R: np.ndarray
    out_received_us_R: np.ndarray
    node_sent_us_R: np.ndarray
    node_received_us_R: np.ndarray
    messages_us_R: np.ndarray
    copy_us_R: np.ndarray
    latency_us: float
    rank_us_R: np.ndarray
    total_us: float
    method: str = "roofline"
    band: tuple[float, float] | None = None

    @property
    def parts_us(self) -> dict[str, float]:
        """The slowest rank's time by what it would be if that were all: classes of links, messages, copy, latency."""
        parts = {
            "scale_up": (self.up_sent_us_R, self.up_received_us_R),
            "scale_out": (self.out_sent_us_R, self.out_received_us_R),
            "node_nic": (self.node_sent_us_R, self.node_received_us_R),
            "messages": (self.messages_us_R,),
            "own_copy": (self.copy_us_R,),
        }
        busiest = {name: float(max(us_R.max() for us_R in both)) for name, both in parts.items()}
        return busiest | {"latency": self.latency_us}


def _up_us(rows: np.ndarray, row_bytes: float, links: LinkRates) -> np.ndarray:
    """Above the latency, which a curve counts as its floor."""
    if links.up_curve is None:
        return _link_us(rows, row_bytes, links.up_bytes_per_us, field=UP_FIELD)
    return links.up_curve.busy_us(rows * row_bytes)


def _link_us(rows: np.ndarray, row_bytes: float, rate: float, *, field: str) -> np.ndarray:
    if not rate:
        if rows.any():
            raise Unsupported(f"traffic between ranks needs a link that this hardware has not: set {field}")
        return np.zeros_like(rows, dtype=float)
    return rows * (row_bytes / rate)


def _out_us(rail: np.ndarray, cross: np.ndarray, row_bytes: float, links: LinkRates) -> np.ndarray:
    across = links.out_bytes_per_us if links.cross_bytes_per_us is None else links.cross_bytes_per_us
    along_us = _link_us(rail, row_bytes, links.out_bytes_per_us, field=OUT_FIELD)
    return along_us + _link_us(cross, row_bytes, across, field=OUT_FIELD)


def _port_us(port: PortLoad, hop: HopLoad, links: LinkRates, row_bytes: float) -> tuple[np.ndarray, ...]:
    """One direction: scale-up, NIC, the node's NIC."""
    up_us_R = _up_us(port.up_R, row_bytes, links)
    out_us_R = _out_us(port.rail_R, port.cross_R, row_bytes, links)
    if not hop.per_row and hop.rounds is None:
        along_us, across_us = links.alpha_us
        out_us_R = out_us_R + port.rail_messages_R * along_us + port.cross_messages_R * across_us
    if port is hop.received and hop.rounds is None:
        out_us_R = np.where(port.out_peers_R > 1, out_us_R / links.incast, out_us_R)
    if links.node_bytes_per_us is None:
        return up_us_R, out_us_R, np.zeros_like(out_us_R)
    node_N = np.bincount(hop.node_R, port.out_R)
    return up_us_R, out_us_R, node_N[hop.node_R] * (row_bytes / links.node_bytes_per_us)


def price_hop(hop: HopLoad, links: LinkRates, *, row_bytes: float) -> HopCost:
    """The cost of a hop whose rows are ``row_bytes`` long.

    Raises Unsupported when bytes need a link of rate zero, naming the field that sets it.
    """
    links = links.between(int(hop.node_R.max()) + 1)
    up_sent, out_sent, node_sent = _port_us(hop.sent, hop, links, row_bytes)
    up_received, out_received, node_received = _port_us(hop.received, hop, links, row_bytes)
    messages = np.maximum(_messages(hop.sent, hop), _messages(hop.received, hop)) * MESSAGE_US
    memory = links.memory_bytes_per_us
    copy = hop.self_R * (2 * row_bytes / memory) if memory else np.zeros_like(hop.self_R)
    busiest = [up_sent, up_received, out_sent, out_received, node_sent, node_received, messages, copy]
    if links.peer_bytes_per_us:
        busiest.append(hop.peer_R * (row_bytes / links.peer_bytes_per_us))
    own_us_R = np.max(busiest, axis=0)
    if hop.rounds is None:
        latency_us = _latency_us(hop, links)
        rank_us_R = np.where(own_us_R > 0, own_us_R + latency_us, 0.0)
        total_us = float(rank_us_R.max())
    else:
        latency_us, total_us = _rounds_us(hop.rounds, links, row_bytes)
        total_us = max(total_us, float(copy.max()))
        rank_us_R = np.where(own_us_R > 0, np.minimum(own_us_R + latency_us, total_us), 0.0)
    costs = (up_sent, up_received, out_sent, out_received, node_sent, node_received, messages, copy)
    return HopCost(hop.name, *costs, latency_us, rank_us_R, total_us, links.method, links.band)


def price_hops(hops: Sequence[HopLoad], links: LinkRates, *, row_bytes: float) -> tuple[HopCost, ...]:
    """The hops of an exchange in their order, each from when those before it are done.

    Streamed hops end together at the slowest of a rank's links in any hop and of its SMs, which copy what it hands
    over or takes in, in all hops together.
    """
    costs = tuple(price_hop(hop, links, row_bytes=row_bytes) for hop in hops)
    if links.copied is None or not hops:
        return costs
    handled_R = row_bytes * sum(np.maximum(hop.sent_R, hop.received_R) for hop in hops)
    copied_R = np.where(handled_R > 0, links.copied.at(handled_R), 0.0)
    wait_us = links.barrier_us * _doublings(hops[0].node_R)
    done_HR = np.maximum.accumulate([np.where(cost.rank_us_R > 0, cost.rank_us_R + wait_us, 0.0) for cost in costs])
    done_HR[-1] = np.maximum(done_HR[-1], np.where(copied_R > 0, copied_R + wait_us, 0.0))
    ends_us, before_us = done_HR.max(axis=1), 0.0
    streamed = []
    for cost, done_R, end_us in zip(costs, done_HR, ends_us.tolist(), strict=True):
        streamed.append(replace(cost, rank_us_R=np.maximum(0.0, done_R - before_us), total_us=end_us - before_us))
        before_us = end_us
    return tuple(streamed)


def _doublings(node_R: np.ndarray) -> int:
    """Rounds of a barrier beyond those of two nodes."""
    return max(0, ceil(log2(int(node_R.max()) + 1)) - 1)


def _messages(port: PortLoad, hop: HopLoad) -> np.ndarray:
    """Messages that cost their start [R]; a row written by itself inside a domain is stores, and costs its bytes."""
    return port.rail_messages_R + port.cross_messages_R if hop.per_row else port.messages_R


def _rounds_us(rounds: RoundLoads, links: LinkRates, row_bytes: float) -> tuple[float, float]:
    """Latencies of all rounds, and latencies and slowest ranks together; a round is one message a rank."""
    out_S = rounds.rail_S + rounds.cross_S > 0
    latency_S = np.where(out_S, links.out_latency_us, np.where(rounds.up_S > 0, _up_latency_us(links), 0.0))
    along_us, across_us = links.alpha_us
    alpha_S = np.maximum(np.where(rounds.rail_S > 0, along_us, 0.0), np.where(rounds.cross_S > 0, across_us, 0.0))
    up_S = _up_us(rounds.up_S, row_bytes, links)
    if links.peer_bytes_per_us:
        up_S = np.maximum(up_S, _link_us(rounds.up_S, row_bytes, links.peer_bytes_per_us, field=UP_FIELD))
    none_S = np.zeros_like(rounds.rail_S)
    busiest = [up_S, alpha_S + np.maximum(
        _out_us(rounds.rail_S, none_S, row_bytes, links), _out_us(none_S, rounds.cross_S, row_bytes, links)
    )]  # fmt: skip
    if links.node_bytes_per_us is not None:
        busiest.append(rounds.node_S * (row_bytes / links.node_bytes_per_us))
    return float(latency_S.sum()), float((latency_S + np.max(busiest, axis=0)).sum())


def _latency_us(hop: HopLoad, links: LinkRates) -> float:
    if hop.out_sent_R.any():
        return links.out_latency_us
    return _up_latency_us(links) if hop.up_sent_R.any() else 0.0


def _up_latency_us(links: LinkRates) -> float:
    return links.up_latency_us if links.up_curve is None else max(links.up_latency_us, links.up_curve.floor_us)


def count_exchange_us(hops: tuple[HopLoad, ...], links: LinkRates, *, node_R: np.ndarray) -> float:
    """Every rank tells every other how many rows come, once a hop whose receivers do not know, before the rows.

    R - 1 messages of 8 bytes, a hop in rounds or with few peers too: ranks cannot know who has nothing for them.
    """
    asked = sum(not hop.announced for hop in hops)
    if len(node_R) == 1 or not asked or links.counts_inside:
        return 0.0
    return asked * _counts_us(tuple(np.asarray(node_R).tolist()), links)


@lru_cache(maxsize=256)
def _counts_us(node_R: tuple[int, ...], links: LinkRates) -> float:
    return price_hop(even_load("counts", np.asarray(node_R)), links, row_bytes=COUNT_BYTES).total_us


def band_us(costs: Iterable[HopCost]) -> tuple[float, float]:
    """Microseconds from the sum of the hops to the two ends of its band; a hop by data sheet has none, and adds none.

    Errors of the hops of one exchange go together, so they add up.
    """
    banded = [(cost.total_us, *cost.band) for cost in costs if cost.band is not None]
    return sum((low - 1) * us for us, low, _ in banded), sum((high - 1) * us for us, _, high in banded)


def all_reduce_us(num_bytes: float, *, num_ranks: int, links: LinkRates) -> float:
    """Reduce-scatter and all-gather inside a scale-up domain: 2 (n - 1) / n of the bytes, two latencies."""
    if num_ranks == 1:
        return 0.0
    if links.reduce_curve is not None:
        return float(links.reduce_curve.at(num_bytes))
    if not links.up_bytes_per_us:
        raise Unsupported("tensor parallelism needs a scale-up link: set cluster.links.scale_up_gb_per_s")
    return 2 * links.up_latency_us + 2 * (num_ranks - 1) / num_ranks * num_bytes / links.up_bytes_per_us
