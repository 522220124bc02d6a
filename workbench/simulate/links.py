"""Links of a cell as measured: the best published figures for its part, its network and its strategy.

- ``low_latency``: DeepEP's one-sided writes; curves of one node, latency and share of the NIC from two.
- ``node_dedup`` on CUDA: DeepEP's normal mode, whose hops stream into one another through SMs.
- every other strategy: NCCL's all-to-all inside the domain (``allgather_reduce_scatter``: its gather and scatter);
  between nodes NCCL's own figure of a message's latency, and the share of the NIC that the one-sided writes reach, as
  no table has NCCL on several nodes.

A part without rows takes those of its architecture or else of H100, each byte as much faster as the links are. A pair
of a mesh has its link at the share of its rate that the curve ends with. PCIe without a measurement, the memory of one
machine and ``method: roofline`` keep the data sheet. Bands (``data/links.json``, by ``python -m
workbench.run.fit_links``) hold 80% of measured over priced time of rows that the constants were not made from.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from workbench.balance.nodes import ranks_per_node
from workbench.simulate.collectives import (
    ALL_REDUCE,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    fitted_curve,
    leaving_curve,
    measured_counts,
    measured_parts,
    nccl_curve,
)
from workbench.simulate.curves import SizeCurve
from workbench.simulate.fabric import (
    GPUS_PER_NODE,
    REFERENCE,
    Fabric,
    Way,
    near_parts,
    near_shapes,
    near_way,
    reference_fabric,
)
from workbench.simulate.families import Band, is_near, widened
from workbench.simulate.link_rates import LinkRates, link_rates
from workbench.spec.catalog import load_hardware
from workbench.spec.cluster import Cluster, Hardware
from workbench.spec.scenario import Cell

BANDS = Path(__file__).with_name("data") / "links.json"
NCCL_FAR_US = 14.0
"""Latency of a message between nodes in NCCL's tuning table (Simple protocol)."""
CHECKED_NODES = 8
"""Up to so many the all-to-all of NCCL was met within its band: 16 and 64 A100 of Tutel's paper, and not 256."""
DEFAULT_SMS = 20
"""DeepEP's own number."""


@dataclass(frozen=True)
class Links:
    """Rates of dispatch (``out``) and of combine (``back``), and what must be said of them."""

    out: LinkRates
    back: LinkRates
    flags: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        """The strategy's kernels gather and add up rows themselves."""
        return self.out.counts_inside


@cache
def bands() -> dict[str, Band]:
    """Bands by what they are of."""
    return {name: tuple(band) for name, band in json.loads(BANDS.read_text())["bands"].items()}


def links_of(cell: Cell) -> Links:
    """The best links for the cell, or the data sheet's."""
    cluster, inside = cell.cluster, ranks_per_node(cell)
    if not _is_measured(cell):
        sheet = link_rates(cluster)
        return Links(sheet, sheet)
    far, tp = cell.ep > inside, cell.parallel.tp
    if _has_kernel(cell, "low_latency"):
        return one_sided_links(cluster, far=far, tp=tp, shape=_shape(cell))
    if _has_kernel(cell, "node_dedup"):
        return streamed_links(cluster, far=far, tp=tp, num_sms=cell.dispatch.comm_sms)
    nodes = -(-cell.ep // inside)
    if cell.dispatch.strategy == "allgather_reduce_scatter":
        out, back = (collective_links(cluster, num_ranks=inside, nodes=nodes, tp=tp, op=op) for op in (GATHER, SCATTER))
        return replace(out, back=back.back)
    return collective_links(cluster, num_ranks=inside, nodes=nodes, tp=tp)


def reduction_links(cell: Cell, num_gpus: int) -> LinkRates:
    """Links for all-reduces of ``num_gpus``: NCCL's curve where that many were timed, else the data sheet."""
    sheet = link_rates(cell.cluster)
    if not _is_measured(cell):
        return sheet
    return replace(sheet, reduce_curve=_reduce_curve(cell.cluster.hardware, num_gpus))


def prices_sms(cell: Cell) -> bool:
    """Whether ``dispatch.comm_sms`` decides anything."""
    return _is_measured(cell) and _has_kernel(cell, "node_dedup")


def _is_measured(cell: Cell) -> bool:
    up, fit = cell.cluster.hardware.scale_up, cell.cluster.hardware.measured_all_to_all
    if cell.method == "roofline" or cell.cluster.device == "cpu" or not up.gb_per_s:
        return False
    return up.topology in ("switch", "mesh") or (up.topology == "pcie" and fit is not None)


def _shape(cell: Cell) -> tuple[int, ...] | None:
    """Of DeepEP's tables; they are of eight ranks."""
    model = cell.model
    timed = model is not None and cell.ep == GPUS_PER_NODE
    return (model.hidden, model.top_k, model.num_experts) if timed else None


def _has_kernel(cell: Cell, strategy: str) -> bool:
    """DeepEP's kernels move tokens of a model over a switch or a mesh."""
    return cell.model is not None and cell.dispatch.strategy == strategy and (
        cell.cluster.hardware.scale_up.topology != "pcie"
    )  # fmt: skip


def collective_links(cluster: Cluster, *, num_ranks: int, nodes: int = 1, tp: int = 1, op: str = ALL_TO_ALL) -> Links:
    """NCCL's all-to-all, or another ``op`` of its, of ``num_ranks`` in each of ``nodes`` domains."""
    hardware = cluster.hardware
    curve, source, band = _collective(hardware, num_ranks, op)
    way = reference_fabric().dispatch
    rates = _measured(cluster, curve, nic_share=way.nic_share, far_us=NCCL_FAR_US, tp=tp)
    flags = _flags(hardware, source)
    if nodes > 1:
        band, flags = widened(band, bands()["one_sided_far"]), (*flags, "nccl_between_nodes")
    if nodes > CHECKED_NODES:
        band = band[0], max(band[1], bands()["collective_many_nodes"][1])
    name = "published" if band == bands()["collective"] else "calibrated"
    rates = replace(rates, method=name, band=band)
    return Links(rates, rates, flags)


def _collective(hardware: Hardware, num_ranks: int, op: str) -> tuple[SizeCurve, str | None, Band]:
    """A curve of the bytes that leave a rank, the part it is of if another one, and its band."""
    if hardware.name in measured_parts():
        curve = leaving_curve(hardware.name, max(2, num_ranks), op)
        return _to_part(curve, hardware.name, hardware), None, bands()["collective"]
    if hardware.measured_all_to_all is not None:
        return fitted_curve(hardware.measured_all_to_all), None, bands()["collective_fit"]
    source = _source(hardware, measured_parts()) or REFERENCE
    curve = leaving_curve(source, max(2, num_ranks), op)
    return _to_part(curve, source, hardware), source, bands()["collective_moved"]


def one_sided_links(
    cluster: Cluster, *, far: bool, tp: int = 1, shape: tuple[int, ...] | None = None, fabric: Fabric | None = None
) -> Links:
    """DeepEP's low-latency mode, by the curve of ``shape`` where it was timed, else by DeepSeek's.

    ``fabric``: constants to take instead of those of all rows.
    """
    hardware = cluster.hardware
    source = _source(hardware, near_parts())
    known = shape in near_shapes(source or hardware.name)
    band = bands()["one_sided_far" if far else "one_sided_shape" if known else "one_sided"]
    band = widened(band, bands()["collective_moved"]) if source else band
    published = known and not far and not source

    def rates(name: str) -> LinkRates:
        way: Way = getattr(fabric or reference_fabric(), name)
        timed = {"shape": shape} if known else {}
        near = way.one_sided if fabric else near_way(source or hardware.name, name, **timed).one_sided
        curve = _to_part(near, source or hardware.name, hardware)
        found = _measured(cluster, curve, nic_share=way.nic_share, far_us=way.one_sided_far_us, tp=tp)
        return replace(found, counts_inside=True, method="published" if published else "calibrated", band=band)

    return Links(rates("dispatch"), rates("combine"), _flags(hardware, source))


def streamed_links(
    cluster: Cluster, *, far: bool, num_sms: int | None = None, tp: int = 1, fabric: Fabric | None = None
) -> Links:
    """DeepEP's normal mode, with the curve of the measured number of SMs nearest to ``num_sms``."""
    hardware = cluster.hardware
    source = _source(hardware, near_parts())
    band = bands()["streamed_far" if far else "streamed"]
    band = widened(band, bands()["collective_moved"]) if source else band

    def rates(name: str) -> LinkRates:
        way: Way = getattr(fabric or reference_fabric(), name)
        near = way.copied if fabric else near_way(source or hardware.name, name).copied
        curves = way.copied_far if far else near
        sms = min(curves, key=lambda count: (abs(count - (num_sms or DEFAULT_SMS)), count))
        curve = _to_part(curves[sms], REFERENCE if far else source or hardware.name, hardware, at_most=1.0)
        found = _measured(cluster, None, nic_share=way.nic_share, far_us=way.base_us.get(sms, 0.0), tp=tp)
        return replace(
            found, up_latency_us=0.0, copied=curve, barrier_us=way.barrier_us, counts_inside=True,
            method="calibrated" if far or source else "published", band=band,
        )  # fmt: skip

    return Links(rates("dispatch"), rates("combine"), _flags(hardware, source))


def _source(hardware: Hardware, parts: tuple[str, ...]) -> str | None:
    """The part whose rows stand in for those of ``hardware``: of its architecture if there is one; None for its own."""
    if hardware.name in parts:
        return None
    return next((name for name in (REFERENCE, *parts) if is_near(name, hardware)), REFERENCE)


def _measured(cluster: Cluster, curve: SizeCurve | None, *, nic_share: float, far_us: float, tp: int) -> LinkRates:
    """The data sheet's rates with what was measured in place of it; what the user says of latencies still holds."""
    sheet, up = link_rates(cluster), cluster.hardware.scale_up
    share = 1.0 if "small_messages" in cluster.hardware.scale_out.penalties else nic_share
    reached = min(1.0, 1 / curve.last_us_per_byte / (up.gb_per_s * 1e3)) if curve else 1.0
    return replace(
        sheet,
        up_curve=curve,
        peer_bytes_per_us=sheet.peer_bytes_per_us and sheet.peer_bytes_per_us * reached,
        out_bytes_per_us=sheet.out_bytes_per_us * share,
        cross_bytes_per_us=sheet.cross_bytes_per_us and sheet.cross_bytes_per_us * share,
        out_latency_us=max(far_us, sheet.out_latency_us),
        reduce_curve=_reduce_curve(cluster.hardware, tp),
    )


def _reduce_curve(hardware: Hardware, tp: int) -> SizeCurve | None:
    if hardware.name not in measured_parts() or tp not in measured_counts(hardware.name, ALL_REDUCE):
        return None
    return _to_part(nccl_curve(hardware.name, ALL_REDUCE, tp), hardware.name, hardware)


def _to_part(curve: SizeCurve, source: str, hardware: Hardware, *, at_most: float = float("inf")) -> SizeCurve:
    """A curve of ``source`` on the links of ``hardware``, ``at_most`` so many times as fast."""
    ratio = min(at_most, hardware.scale_up.gb_per_s / load_hardware(source).scale_up.gb_per_s)
    return curve if ratio == 1.0 else curve.on_links(ratio)


def _flags(hardware: Hardware, source: str | None) -> tuple[str, ...]:
    if source is None:
        return ()
    flags = (f"links_of={source}",)
    return flags if hardware.vendor == load_hardware(source).vendor else (*flags, "unvalidated_links")
