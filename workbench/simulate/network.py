"""Time of one exchange: a plan's bytes and messages on a cluster's links, the slowest rank deciding.

R ranks. A hop costs latency + max over ranks of max(scale-up out, scale-up in, NIC out, NIC in, messages / rate), the
cost model of DeepEP-style analyses: links are full duplex, so out and in do not add up. What a rank sends to
itself is free here. On a mesh one pair of GPUs has only ``per_peer_gb_per_s``.

Idealised: links reach their data-sheet rate at every message size, hops follow one another without gaps and without
pipelining, nothing else uses the network, and rails never collide. Oversubscription divides every NIC's rate.
"""

from dataclasses import dataclass

import numpy as np

from workbench.simulate.sampling import full_counts
from workbench.spec.cluster import Cluster
from workbench.spec.errors import Unsupported

MESSAGE_US = 0.1
"""Assumed cost of starting one message, 10 million a second for each GPU; messages overlap with bytes."""

COUNT_BYTES = 8
MAX_RANKS = 512


@dataclass(frozen=True)
class LinkRates:
    """One direction of one GPU's links: bytes a microsecond and microseconds of latency."""

    up_bytes_per_us: float
    peer_bytes_per_us: float | None
    out_bytes_per_us: float
    up_latency_us: float
    out_latency_us: float


@dataclass(frozen=True)
class HopLoad:
    """What one hop puts on each rank's links, in rows [R]; times bytes a row it is bytes.

    ``up`` is the scale-up domain, ``out`` the network between domains; ``self_R`` stays on the GPU. ``peer_R`` is
    the largest row count of any one scale-up pair with that rank. Messages are counted without those to itself.
    """

    name: str
    up_sent_R: np.ndarray
    up_received_R: np.ndarray
    out_sent_R: np.ndarray
    out_received_R: np.ndarray
    self_R: np.ndarray
    peer_R: np.ndarray
    messages_sent_R: np.ndarray
    messages_received_R: np.ndarray

    @property
    def sent_R(self) -> np.ndarray:
        """Rows that leave each rank's buffer, those to itself included."""
        return self.up_sent_R + self.out_sent_R + self.self_R

    @property
    def received_R(self) -> np.ndarray:
        return self.up_received_R + self.out_received_R + self.self_R

    @property
    def reverse(self) -> "HopLoad":
        """The same rows sent back: what combine does to dispatch."""
        return HopLoad(
            self.name,
            self.up_received_R,
            self.up_sent_R,
            self.out_received_R,
            self.out_sent_R,
            self.self_R,
            self.peer_R,
            self.messages_received_R,
            self.messages_sent_R,
        )


@dataclass(frozen=True)
class HopCost:
    """Microseconds of a hop: each rank's own links [R], and the hop as a whole (latency and the slowest rank)."""

    name: str
    up_sent_us_R: np.ndarray
    up_received_us_R: np.ndarray
    out_sent_us_R: np.ndarray
    out_received_us_R: np.ndarray
    rank_us_R: np.ndarray
    total_us: float


def link_rates(cluster: Cluster) -> LinkRates:
    """Rates of one GPU's links, overrides of the cluster already merged into its hardware."""
    up, out = cluster.hardware.scale_up, cluster.hardware.scale_out
    return LinkRates(
        up_bytes_per_us=up.gb_per_s * 1e3,
        peer_bytes_per_us=up.per_peer_gb_per_s * 1e3 if up.topology == "mesh" and up.per_peer_gb_per_s else None,
        out_bytes_per_us=out.gb_per_s * 1e3 / max(1.0, out.oversubscription),
        up_latency_us=up.latency_us,
        out_latency_us=out.latency_us,
    )


def hop_load(
    name: str, rows_RR: np.ndarray, messages_RR: np.ndarray, *, node_R: np.ndarray, scale: float = 1.0
) -> HopLoad:
    """Sums of a hop's [source, destination] rows by rank, direction and link; ``scale`` undoes token sampling.

    Sampled tokens leave pairs empty that the full batch would use, so messages scale too, up to R - 1.
    """
    num_ranks = len(node_R)
    same_RR = node_R[:, None] == node_R[None, :]
    up_RR = np.where(same_RR, rows_RR, 0)
    np.fill_diagonal(up_RR, 0)
    out_RR = np.where(same_RR, 0, rows_RR)
    messages = np.array(messages_RR)
    np.fill_diagonal(messages, 0)
    return HopLoad(
        name,
        up_sent_R=full_counts(up_RR.sum(axis=1), scale=scale),
        up_received_R=full_counts(up_RR.sum(axis=0), scale=scale),
        out_sent_R=full_counts(out_RR.sum(axis=1), scale=scale),
        out_received_R=full_counts(out_RR.sum(axis=0), scale=scale),
        self_R=full_counts(np.diagonal(rows_RR), scale=scale),
        peer_R=np.maximum(up_RR.max(axis=1), up_RR.max(axis=0)) * scale,
        messages_sent_R=np.minimum(messages.sum(axis=1) * scale, num_ranks - 1),
        messages_received_R=np.minimum(messages.sum(axis=0) * scale, num_ranks - 1),
    )


def _link_us(rows_R: np.ndarray, row_bytes: float, rate: float, *, field: str) -> np.ndarray:
    if not rate:
        if rows_R.any():
            raise Unsupported(f"traffic between ranks needs a link that this hardware has not: set {field}")
        return np.zeros_like(rows_R)
    return rows_R * (row_bytes / rate)


def price_hop(hop: HopLoad, links: LinkRates, *, row_bytes: float) -> HopCost:
    """The cost of a hop whose rows are ``row_bytes`` long.

    Raises Unsupported when bytes need a link of rate zero, naming the field that sets it.
    """
    up, out = "cluster.links.scale_up_gb_per_s", "cluster.links.scale_out_gb_per_s"
    up_sent = _link_us(hop.up_sent_R, row_bytes, links.up_bytes_per_us, field=up)
    up_received = _link_us(hop.up_received_R, row_bytes, links.up_bytes_per_us, field=up)
    out_sent = _link_us(hop.out_sent_R, row_bytes, links.out_bytes_per_us, field=out)
    out_received = _link_us(hop.out_received_R, row_bytes, links.out_bytes_per_us, field=out)
    busiest = [up_sent, up_received, out_sent, out_received]
    busiest += [hop.messages_sent_R * MESSAGE_US, hop.messages_received_R * MESSAGE_US]
    if links.peer_bytes_per_us:
        busiest.append(hop.peer_R * (row_bytes / links.peer_bytes_per_us))
    own_us_R = np.max(busiest, axis=0)
    latency_us = _latency_us(hop, links)
    rank_us_R = np.where(own_us_R > 0, own_us_R + latency_us, 0.0)
    return HopCost(hop.name, up_sent, up_received, out_sent, out_received, rank_us_R, float(rank_us_R.max()))


def _latency_us(hop: HopLoad, links: LinkRates) -> float:
    if hop.out_sent_R.any():
        return links.out_latency_us
    return links.up_latency_us if hop.up_sent_R.any() else 0.0


def count_exchange_us(hops: tuple[HopLoad, ...], links: LinkRates, *, node_R: np.ndarray) -> float:
    """Every rank tells every other how many rows come, once a hop, before the rows: R - 1 messages of 8 bytes."""
    num_ranks = len(node_R)
    if num_ranks == 1:
        return 0.0
    ones_RR = np.ones((num_ranks, num_ranks))
    counts = hop_load("counts", ones_RR, ones_RR, node_R=node_R)
    return len(hops) * price_hop(counts, links, row_bytes=COUNT_BYTES).total_us


def all_reduce_us(num_bytes: float, *, num_ranks: int, links: LinkRates) -> float:
    """Reduce-scatter and all-gather inside a scale-up domain: 2 (n - 1) / n of the bytes, two latencies."""
    if num_ranks == 1:
        return 0.0
    if not links.up_bytes_per_us:
        raise Unsupported("tensor parallelism needs a scale-up link: set cluster.links.scale_up_gb_per_s")
    return 2 * links.up_latency_us + 2 * (num_ranks - 1) / num_ranks * num_bytes / links.up_bytes_per_us
