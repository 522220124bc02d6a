"""A cell as the descriptive columns of a record, and the outcomes of cells that gave no figures."""

from dataclasses import dataclass
from typing import Any

from workbench.spec.dispatch import ChunkOverlap
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import AllToAllScope, Cell


def base_record_fields(cell: Cell) -> dict[str, Any]:
    """Every column of Record that the cell alone decides, by column name.

    ``engine`` is the cell's; ``method``, ``status`` and every figure are left to the engine. A cell without a
    model (the microbenchmark scopes) has None for model and router, and for skew unless it is a bare exchange.
    """
    return _identity(cell) | _machine(cell) | _traffic(cell) | _dispatch(cell)


def _identity(cell: Cell) -> dict[str, Any]:
    return {
        "cell_id": cell.cell_id,
        "scenario": cell.scenario,
        "group": cell.group,
        "engine": cell.engine,
        "kernel": cell.kernel,
        "model": cell.model.name if cell.model else None,
        "scope": cell.scope.kind,
        "seed": cell.workload.seed,
        "cell_json": cell.model_dump_json(),
    }


def _machine(cell: Cell) -> dict[str, Any]:
    cluster = cell.cluster
    return {
        "hardware": cluster.hardware.name,
        "device": cluster.device,
        "num_gpus": cluster.num_gpus,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "ep": cell.parallel.ep,
        "tp": cell.parallel.tp,
        "dp": cell.parallel.dp,
        "pp": cell.parallel.pp,
    }


def _traffic(cell: Cell) -> dict[str, Any]:
    has_model = cell.model is not None
    skewed = has_model or isinstance(cell.scope, AllToAllScope)
    return {
        "phase": cell.workload.phase,
        "tokens_per_rank": cell.workload.tokens_per_rank if has_model else None,
        "router": router_kind(cell),
        "skew": short_text(cell.workload.skew) if skewed else None,
        "data": short_text(cell.workload.data),
        "precision": cell.precision.name,
        "scale_rule": cell.precision.scale_rule,
    }


def _dispatch(cell: Cell) -> dict[str, Any]:
    dispatch, balance = cell.dispatch, cell.balance
    redundant = balance.placement.redundant_experts
    return {
        "strategy": dispatch.strategy,
        "dispatch_dtype": dispatch.dispatch_dtype,
        "combine_dtype": dispatch.combine_dtype,
        "overlap": dispatch.overlap.kind,
        "overlap_degree": dispatch.overlap.degree if isinstance(dispatch.overlap, ChunkOverlap) else None,
        "bytes_per_rank": cell.scope.bytes_per_rank if isinstance(cell.scope, AllToAllScope) else None,
        "placement": balance.placement.kind,
        "redundant_experts": redundant if isinstance(redundant, int) else None,
        "training_balance": balance.training,
    }


def router_kind(cell: Cell) -> str | None:
    """The router that decides: the scenario's, or the model's own; None without a model."""
    if cell.model is None:
        return None
    return cell.model.router.kind if cell.router.kind == "model" else cell.router.kind


def short_text(tagged: Any) -> str:
    """A tagged union member on one line: ``uniform``, ``power_law(1.01)``, ``hot_rank(4, 0)``.

    Fields left None are passed over; of a path only the last part is shown, for the whole path is in cell_json.
    """
    values = [_short(name, value) for name, value in tagged if name != "kind" and value is not None]
    return f"{tagged.kind}({', '.join(values)})" if values else tagged.kind


def _short(name: str, value: Any) -> str:
    if name == "path":
        return str(value).replace("\\", "/").rsplit("/", 1)[-1]
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """What a cell would need and what there is, in bytes of the worst rank."""

    weight_bytes: int
    needed_bytes: int
    capacity_bytes: int

    @property
    def shortage_bytes(self) -> int:
        return max(0, self.needed_bytes - self.capacity_bytes)


def unsupported(cell: Cell, reason: str, *, engine: str | None = None, method: str | None = None) -> Outcome:
    """The workbench cannot do this cell yet, or never; ``reason`` says which and what comes instead."""
    return _without_figures(cell, "unsupported", reason, engine=engine, method=method)


def failed(cell: Cell, reason: str, *, engine: str | None = None, method: str | None = None) -> Outcome:
    """The cell was tried and broke; ``reason`` is one line."""
    return _without_figures(cell, "error", reason, engine=engine, method=method)


def infeasible(
    cell: Cell, reason: str, *, engine: str | None = None, method: str | None = None, shortage: Shortage | None = None
) -> Outcome:
    """The cell cannot exist on this machine; with ``shortage`` the memory columns say by how much."""
    figures: dict[str, Any] = {}
    if shortage is not None:
        figures = {
            "weight_bytes": shortage.weight_bytes,
            "peak_memory_bytes": shortage.needed_bytes,
            "fits": False,
            "shortage_bytes": shortage.shortage_bytes,
        }
    return _without_figures(cell, "infeasible", reason, engine=engine, method=method, figures=figures)


def _without_figures(
    cell: Cell,
    status: str,
    reason: str,
    *,
    engine: str | None,
    method: str | None,
    figures: dict[str, Any] | None = None,
) -> Outcome:
    fields = base_record_fields(cell) | {"status": status, "reason": reason, "method": method} | (figures or {})
    return Outcome(record=Record(**fields | ({"engine": engine} if engine else {})))
