"""What the ranks of a measured cell sent: bytes of every kind, legs by link, bandwidths and whether they can be.

R ranks. Bytes are of one pass over all ranks, both ways of a layer together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.comm.bandwidth import algbw, busbw
from workbench.comm.gradients import WIRE_DTYPE
from workbench.comm.payload import payload_bytes
from workbench.comm.topology import topology_of
from workbench.run.report import Leg, RankReport
from workbench.spec.scenario import AllToAllScope, Cell

ABOVE_LINK = "above_link"
"""Flag of a cell whose bytes went faster than the links of its hardware carry them."""


def byte_fields(cell: Cell, reports: Sequence[RankReport]) -> dict[str, Any]:
    """Wire bytes are those of the send buffers, physical ones the payload among them, logical ones what had to be sent:
    in a layer a payload for every pair and way."""
    up = sum(report.wire.get("scale_up", 0) for report in reports)
    out = sum(report.wire.get("scale_out", 0) for report in reports)
    fields: dict[str, Any] = {"wire_bytes": up + out, "scale_up_bytes": up, "scale_out_bytes": out}
    fields["physical_bytes"] = sum(report.physical_bytes for report in reports)
    if all(report.logical_bytes is not None for report in reports):
        fields["logical_bytes"] = sum(report.logical_bytes or 0 for report in reports)
    elif cell.model is not None and len(reports) == cell.ep and cell.dispatch.strategy != "none":
        dtypes = (cell.dispatch.dispatch_dtype, cell.dispatch.combine_dtype)
        dtypes += (WIRE_DTYPE, WIRE_DTYPE) if cell.scope.kind == "train_step" else ()
        each = sum(payload_bytes(cell.model.hidden, dtype) for dtype in dtypes)
        fields["logical_bytes"] = sum(report.pairs for report in reports) * each
    return fields


def legs_by_name(reports: Sequence[RankReport]) -> dict[str, list[Leg]]:
    """Each leg as every rank saw it."""
    found: dict[str, list[Leg]] = {}
    for report in reports:
        for leg in report.legs:
            found.setdefault(leg.name, []).append(leg)
    return found


def _slowest_us(legs: Sequence[Leg]) -> float:
    return max(leg.us for leg in legs)


def leg_fields(reports: Sequence[RankReport]) -> dict[str, Any]:
    """Hops that cross nodes and those that do not: the slowest rank of each, added up; None where there is no such."""
    totals: dict[str, float] = {}
    for legs in legs_by_name(reports).values():
        totals[legs[0].link] = totals.get(legs[0].link, 0.0) + _slowest_us(legs)
    return {f"{link}_us": totals.get(link) for link in ("scale_up", "scale_out")}


def bandwidth_fields(cell: Cell, reports: Sequence[RankReport], *, latency_us: float) -> dict[str, Any]:
    """Algorithm and bus bandwidth of the dispatch, as nccl-tests define them, of the heaviest rank, sent or received.

    Of a bare exchange bytes are those of the buffer, whatever the strategy makes of them, and the time is the latency;
    of a layer they are the rows that its hops hand over, over the time of these legs.
    """
    if isinstance(cell.scope, AllToAllScope):
        size, seconds = max(report.activation_bytes for report in reports), latency_us / 1e6
    else:
        legs = [legs for name, legs in legs_by_name(reports).items() if _way(name) == "dispatch"]
        size, seconds = sum(map(_heaviest, legs)), sum(map(_slowest_us, legs)) / 1e6
    if not size:
        return {}
    ranks = len(reports)
    return {
        "algbw_gb_per_s": algbw(size, seconds=seconds, num_ranks=ranks),
        "busbw_gb_per_s": busbw(size, seconds=seconds, num_ranks=ranks),
    }


def _way(name: str) -> str:
    """``dispatch`` of dispatch.scale_out, ``dispatch.backward`` of dispatch.backward.scale_out."""
    return name.rpartition(".")[0]


def _heaviest(legs: Sequence[Leg]) -> int:
    return max(max(sum(leg.sent.values()), sum(leg.received.values())) for leg in legs)


def link_rows(cell: Cell, reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    """Bytes each rank sent: by link class as ``layer/scale_up/out/rank 0``, all of a pass together, and by leg as
    ``dispatch.scale_out/scale_up/out/rank 0`` with the time of that leg on the rank."""
    rows = [
        (f"layer/{link}/out/rank {report.rank}", size, None)
        for report in reports
        for link, size in report.wire.items()
        if size
    ]
    rows += [
        (f"{leg.name}/{link}/out/rank {report.rank}", size, leg.us)
        for report in reports
        for leg in report.legs
        for link, size in leg.sent.items()
        if size and link != "self"
    ]
    return [{"cell_id": cell.cell_id, "link": link, "bytes": size, "busy_us": us} for link, size, us in rows]


def above_link(cell: Cell, reports: Sequence[RankReport], *, latency_us: float) -> list[str]:
    """``above_link`` where a rank, or a node over the port that its ranks share, sent or received more a second than
    its links carry: in a leg, or over the latency.

    Only of GPUs: a processor's ranks pass rows through memory, whatever links the cluster is said to have.
    """
    if cell.cluster.device != "cuda":
        return []
    up, out = cell.cluster.hardware.scale_up, cell.cluster.hardware.scale_out
    for way in ("sent", "received"):
        for legs in legs_by_name(reports).values():
            moved = {link: np.array([getattr(leg, way)[link] for leg in legs]) for link in ("scale_up", "scale_out")}
            budgets = [(moved["scale_up"], up.gb_per_s), (moved["scale_out"], out.gb_per_s)]
            if out.node_gb_per_s is not None:
                nodes = topology_of(cell).node_of[[report.rank for report in reports if report.legs]]
                budgets.append((np.bincount(nodes, moved["scale_out"]), out.node_gb_per_s))
            if any((size > rate * 1e3 * _slowest_us(legs)).any() for size, rate in budgets):
                return [ABOVE_LINK]
    rates = {"scale_up": up.gb_per_s, "scale_out": out.gb_per_s}
    passed = [report.wire.get(link, 0) > rate * 1e3 * latency_us for report in reports for link, rate in rates.items()]
    return [ABOVE_LINK] if any(passed) else []
