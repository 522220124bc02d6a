"""Rates of a GPU's links and what was measured of them."""

from dataclasses import dataclass, replace
from math import log2

from workbench.simulate.curves import SizeCurve
from workbench.simulate.penalties import CONGESTION, CROSS, CROSS_RATE, INCAST_RATE, RAIL
from workbench.spec.cluster import Cluster, Hardware


@dataclass(frozen=True)
class LinkRates:
    """One direction of one GPU's links: bytes a microsecond and microseconds of latency.

    ``node`` is what the ranks of a node share; None where nothing is shared. ``memory`` is a GPU's own, for what stays.
    ``alpha_us`` are costs of a scale-out message, along a rail and across; ``incast`` the part of a NIC's rate that is
    left where several ranks send to it. ``spine`` are the nodes of a leaf switch and what its way up is oversubscribed
    by, ``congestion`` what each doubling of nodes leaves of a NIC's rate: ``between`` counts both in.

    From measurements come ``up_curve``, which takes the place of the scale-up rate and latency; ``reduce_curve`` over
    the bytes of an all-reduce of the GPUs of a rank; ``copied`` over what the SMs of a rank copy, for a strategy whose
    hops stream into one another, with ``barrier_us`` for each doubling of nodes beyond two; ``counts_inside`` where the
    exchange of counts is in the latency. ``method`` and ``band`` say what all of it is worth: measured over priced
    time, an interval that holds 80%.
    """

    up_bytes_per_us: float
    peer_bytes_per_us: float | None
    out_bytes_per_us: float
    up_latency_us: float
    out_latency_us: float
    node_bytes_per_us: float | None = None
    cross_bytes_per_us: float | None = None
    memory_bytes_per_us: float | None = None
    alpha_us: tuple[float, float] = (0.0, 0.0)
    incast: float = 1.0
    spine: tuple[int, float] | None = None
    congestion: float = 1.0
    up_curve: SizeCurve | None = None
    reduce_curve: SizeCurve | None = None
    copied: SizeCurve | None = None
    barrier_us: float = 0.0
    counts_inside: bool = False
    method: str = "roofline"
    band: tuple[float, float] | None = None

    def between(self, nodes: int) -> "LinkRates":
        """The rates for an exchange among so many nodes, whose traffic is spread evenly over the others."""
        left = self.congestion ** max(0.0, log2(nodes) - 1) / _narrowed(nodes, self.spine)
        if left == 1.0:
            return self
        rates = ("out_bytes_per_us", "cross_bytes_per_us", "node_bytes_per_us")
        return replace(self, **{name: getattr(self, name) and getattr(self, name) * left for name in rates})


def _narrowed(nodes: int, spine: tuple[int, float] | None) -> float:
    """What a NIC's rate is divided by: the busiest leaf's way up, if that is busier than the NICs themselves."""
    if spine is None or nodes <= spine[0]:
        return 1.0
    leaf, oversubscription = spine
    smallest = nodes % leaf or leaf
    return max(1.0, oversubscription * (nodes - smallest) / (nodes - 1))


def link_rates(cluster: Cluster) -> LinkRates:
    """Rates of one GPU's links, overrides of the cluster already merged into its hardware."""
    hardware = cluster.hardware
    up, out = hardware.scale_up, hardware.scale_out
    narrowed, on = max(1.0, out.oversubscription), out.penalties
    spine = (out.leaf_nodes, narrowed) if out.leaf_nodes else None
    narrowed = 1.0 if spine else narrowed
    rate = out.gb_per_s * 1e3 / narrowed
    small, across = "small_messages" in on, "cross_rail" in on
    up_latency_us, up_rate = _measured_up(hardware) if small else (up.latency_us, up.gb_per_s * 1e3)
    cross = CROSS.rate if small else CROSS_RATE
    return LinkRates(
        up_bytes_per_us=up_rate,
        peer_bytes_per_us=up.per_peer_gb_per_s * 1e3 if up.topology == "mesh" and up.per_peer_gb_per_s else None,
        out_bytes_per_us=rate * RAIL.rate if small else rate,
        up_latency_us=up_latency_us,
        out_latency_us=out.latency_us,
        node_bytes_per_us=out.node_gb_per_s * 1e3 / narrowed if out.node_gb_per_s else None,
        cross_bytes_per_us=rate * cross if across else None,
        memory_bytes_per_us=hardware.memory_tb_per_s * 1e6,
        alpha_us=(RAIL.alpha_us, CROSS.alpha_us if across else RAIL.alpha_us) if small else (0.0, 0.0),
        incast=INCAST_RATE if "incast" in on else 1.0,
        spine=spine,
        congestion=CONGESTION if "congestion" in on else 1.0,
    )


def _measured_up(hardware: Hardware) -> tuple[float, float]:
    """Latency and bytes a microsecond inside a node, as published for the part's NCCL all-to-all where they are.

    Its bandwidth counts what a rank sends itself, which travels nowhere.
    """
    up, fit = hardware.scale_up, hardware.measured_all_to_all
    if fit is None:
        return up.latency_us, up.gb_per_s * 1e3
    return fit.alpha_us, fit.algbw_gb_per_s * 1e3 * (fit.num_gpus - 1) / fit.num_gpus
