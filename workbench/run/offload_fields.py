"""Columns of cells whose experts are offloaded, by the definitions of a measured one (``offloaded``)."""

from collections.abc import Sequence
from typing import Any

from workbench.run.describe import Shortage, infeasible
from workbench.simulate.layer import LayerCost
from workbench.simulate.memory import GIB
from workbench.simulate.offload import host_bytes, host_shortage_bytes
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell


def offload_fields(layers: Sequence[LayerCost], *, scale: float) -> dict[str, Any]:
    """``hit_rate`` of all layers; ``stall_us`` and ``offload_bytes`` of a step over all. Nothing without a tier."""
    found = [cost.offload for cost in layers if cost.offload is not None]
    if not found:
        return {}
    rates = [one.hit_rate for one in found if one.hit_rate is not None]
    return {
        "hit_rate": sum(rates) / len(rates) if rates else None,
        "stall_us": scale * sum(one.stall_us for one in found),
        "offload_bytes": round(scale * sum(one.bytes_per_step for one in found)),
    }


def host_does_not_fit(cell: Cell, *, layers: int) -> Outcome:
    """The infeasible outcome of a cell whose experts exceed the memory of a node's host."""
    assert cell.cluster.host is not None
    needed, short = host_bytes(cell, layers=layers), host_shortage_bytes(cell, layers=layers)
    shortage = Shortage(weight_bytes=needed, needed_bytes=needed, capacity_bytes=needed - short)
    reason = (
        f"the experts of a node need {needed / GIB:.2f} GiB of the {(needed - short) / GIB:.2f} GiB of its host "
        f"(cluster.host.memory_gb): short by {short / GIB:.2f} GiB ({short} bytes)"
    )
    method = None if cell.method == "best" else cell.method
    return infeasible(cell, reason, engine="simulate", method=method, shortage=shortage)
