"""What keeps a network from its data-sheet rate: every penalty with its source and its switch.

Off unless said otherwise: the roofline is the best that links can do, and a derate that was measured on one network
is not another's. ``cluster.links.penalties: [cross_rail, small_messages, incast, congestion]`` turns those on that are
a list's to turn on; the others follow from figures of the cluster.

Scale-out messages of one class cost alpha + bytes / beta each, through two published points at 8 KiB and 4 MiB:
13.8 and 43.7 GB/s between ranks of one rail, 6.1 and 20.1 GB/s across rails, taken to be of a 400 Gb/s NIC. That gives
0.41 us and 0.878 of the NIC, and 0.94 us and 0.404 of it; the NIC's own rate then takes the place of 50 GB/s.
"""

from dataclasses import dataclass
from math import log2

KIB, MIB = 2**10, 2**20
NIC_BYTES_PER_US = 50e3
"""The NIC of the published points."""


@dataclass(frozen=True)
class Penalty:
    """``switch`` is the field that turns it on, or ``always``."""

    effect: str
    switch: str
    source: str


PENALTIES: dict[str, Penalty] = {
    "oversubscription": Penalty(
        "every NIC's rate is divided by it, or with leaf_nodes what leaves a leaf switch's nodes",
        "cluster.links.oversubscription",
        "the cluster's own figure",
    ),
    "leaf": Penalty(
        "nodes under one leaf switch reach one another without the narrow spine; of what a NIC sends, the share that"
        " crosses it is taken to be spread evenly over the other nodes",
        "cluster.links.leaf_nodes",
        "the cluster's own figure",
    ),
    "congestion": Penalty(
        "a NIC's rate falls by 1.3% with every doubling of nodes beyond two",
        "cluster.links.penalties: congestion",
        "NCCL all-to-all on B300 over EFA, bus bandwidth 104.9 GB/s on 2 nodes and 54.7 on 32: 56.0 and 53.2 a NIC",
    ),
    "node_nic": Penalty(
        "the ranks of a node share this rate, out and in, besides their own NICs",
        "cluster.links.scale_out_node_gb_per_s",
        "the cluster's own figure; a virtualised H200 pool was published at 34 GB/s a node against 8 NICs of 400 Gb/s",
    ),
    "message_rate": Penalty("0.1 us for each message of a rank, beside its bytes", "always", "assumed"),
    "cross_rail": Penalty(
        "bytes to another rail of another node go at 0.46 of the rate (20.1 of 43.7 GB/s)",
        "cluster.links.penalties: cross_rail",
        "published points of rail-aligned and cross-rail traffic; second-hand",
    ),
    "small_messages": Penalty(
        "each scale-out message costs 0.41 us (0.94 us across rails, with cross_rail) beside 0.878 of the NIC's rate,"
        " one after another; a hop of one message a row is spared, as its rows go out on many queues (DeepEP keeps"
        " 43 GB/s with rows of 7 KB); inside a node alpha and rate are those of the part's NCCL all-to-all, if known",
        "cluster.links.penalties: small_messages",
        "the same points; hardware.measured_all_to_all",
    ),
    "incast": Penalty(
        "a NIC takes in 0.09 of its rate (4.4 of 49 GB/s) while several ranks send to it at once; rounds are spared",
        "cluster.links.penalties: incast",
        "published for EP32 over Thor-2 NICs without flow control",
    ),
}


@dataclass(frozen=True)
class MessageClass:
    """A message of n bytes takes ``alpha_us`` + n / (``rate`` of the NIC)."""

    alpha_us: float
    rate: float


def through(small_gb_per_s: float, large_gb_per_s: float) -> MessageClass:
    """The line through the times of one message at 8 KiB and at 4 MiB."""
    sizes = (8 * KIB, 4 * MIB)
    small_us, large_us = (size / rate / 1e3 for size, rate in zip(sizes, (small_gb_per_s, large_gb_per_s), strict=True))
    us_per_byte = (large_us - small_us) / (sizes[1] - sizes[0])
    return MessageClass(small_us - us_per_byte * sizes[0], 1 / us_per_byte / NIC_BYTES_PER_US)


def nic_rate(busbw_gb_per_s: float, *, nodes: int, gpus_per_node: int = 8) -> float:
    """GB/s through each NIC in an all-to-all of the given bus bandwidth, which counts what stays in a node too."""
    ranks = nodes * gpus_per_node
    return busbw_gb_per_s * (ranks - gpus_per_node) / (ranks - 1)


CONGESTION = (nic_rate(54.7, nodes=32) / nic_rate(104.9, nodes=2)) ** (1 / log2(32 / 2))
"""Of a NIC's rate, what each doubling of nodes beyond two leaves."""
RAIL, CROSS = through(13.8, 43.7), through(6.1, 20.1)
CROSS_RATE = 20.1 / 43.7
INCAST_RATE = 4.4 / 49
