"""Compute as measured on some ranks, exchanges priced on the cell's cluster: a hybrid record."""

from dataclasses import replace
from typing import Any

from workbench.balance.dynamics import judged_step
from workbench.run.chunks import chunk_flags, is_chunked
from workbench.run.describe import failed, infeasible, unsupported
from workbench.run.hybrid_overlap import Overlapped, overlap_measured
from workbench.run.simulated import price_steps
from workbench.run.simulated_layer import byte_fields, load_fields
from workbench.run.simulated_tables import link_rows, load_rows
from workbench.run.throughput import throughput_fields
from workbench.simulate.layer import LayerCost
from workbench.simulate.links import links_of
from workbench.simulate.support import exchange_unsupported_reason
from workbench.simulate.traffic import group_traffic
from workbench.spec.errors import Unsupported
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import Cell
from workbench.workload.sources import source_tokens

EXCHANGES = ("count_exchange", "dispatch", "combine", "tp_reduce")
SHIFTED = (
    "latency_us", "latency_p50_us", "latency_p95_us", "latency_p99_us", "latency_ci_low_us", "latency_ci_high_us",
    "rank_min_us", "rank_max_us",
)  # fmt: skip
MEASURED_ALONE = (
    "algbw_gb_per_s", "busbw_gb_per_s", "scale_up_us", "scale_out_us", "kernel_us", "event_us", "wall_us",
)  # fmt: skip
"""Columns that say nothing of a record whose exchanges are priced."""
PER_TIME = ("tflops", "hbm_gb_per_s", "roofline_fraction")


def merge_hybrid(cell: Cell, measured: Outcome) -> Outcome:
    """The measured times with their exchanges replaced by priced ones; samples shift by the same amount.

    Ranks that were measured alone exchanged nothing and encoded nothing for the wire, so that is priced too. The
    compute is that of the slowest measured rank; ``flags`` says when the priced layer's slowest rank is not among
    them, for then a loaded rank would take longer than this record. Overlap puts that compute beside the priced
    messages (``hybrid_overlap``). A measured outcome that is not ``ok`` keeps its status and reason.
    """
    record, method = measured.record, f"measured+{links_of(cell).out.method}"
    if record.status != "ok":
        ending = {"unsupported": unsupported, "infeasible": infeasible, "error": failed}[record.status]
        return ending(cell, record.reason or "", engine="hybrid", method=method)
    reason = exchange_unsupported_reason(cell)
    if reason is not None:
        return unsupported(cell, reason, engine="hybrid", method=method)
    if record.latency_us is None:
        return failed(cell, "the measured ranks gave no latency", engine="hybrid", method=method)
    try:
        layers = price_steps(cell)[0]
    except Unsupported as exception:
        return unsupported(cell, exception.reason, engine="hybrid", method=method)
    return _merged(cell, measured, layers)


def _merged(cell: Cell, measured: Outcome, layers: list[LayerCost]) -> Outcome:
    record, scale = measured.record, cell.workload.layers / len(layers)
    first = group_traffic(cell, step=judged_step(cell))
    priced = {part: scale * sum(cost.parts_us[part] for cost in layers) for part in (*EXCHANGES, "wire")}
    exchanged = sum(getattr(record, f"{part}_us") or 0.0 for part in EXCHANGES[:3])
    if exchanged:
        priced["wire"] = 0.0
    stages, overlapped = measured.tables.get("stages", []), None
    shift = sum(priced.values()) - exchanged
    if is_chunked(cell):
        overlapped = overlap_measured(cell, stages, exchanged=bool(exchanged))
        before_us = record.latency_us if exchanged else sum(
            row["duration_us"] for row in stages if row["rank"] == overlapped.rank
        )  # fmt: skip
        shift = overlapped.latency_us - before_us
    fields = _times(cell, record, priced=priced, shift=shift, overlapped=overlapped)
    fields |= _band(layers, latency_us=fields["latency_us"], scale=scale)
    fields |= load_fields(first, scale=cell.workload.layers)
    fields |= throughput_fields(cell, latency_us=fields["latency_us"])
    fields |= byte_fields(cell, layers, first=first, scale=scale)
    fields["flags"] = _flags(cell, record, layers, overlapped)
    tables = dict(measured.tables) | {"links": link_rows(cell, layers[0]), "loads": load_rows(cell, first)}
    tables["stages"] = _relaid(stages, priced, cell_id=cell.cell_id)
    if overlapped is not None:
        tables["stages"] = _pipeline_rows(cell.cell_id, overlapped)
    tables["samples"] = [row | {"us": row["us"] + shift} for row in measured.tables.get("samples", [])]
    return Outcome(record=replace(record, **fields), tables=tables)


def _times(
    cell: Cell, record: Record, *, priced: dict[str, float], shift: float, overlapped: Overlapped | None
) -> dict[str, Any]:
    assert record.latency_us is not None
    latency_us, exchange_us = record.latency_us + shift, sum(priced[part] for part in EXCHANGES)
    shifted = {name: value + shift for name in SHIFTED if (value := getattr(record, name)) is not None}
    slowed = record.latency_us / latency_us
    hidden_us = overlapped.hidden_us if overlapped else 0.0
    compute_us = record.compute_us
    if overlapped is not None and compute_us is not None:
        compute_us += overlapped.added_us
    rates = {name: value * slowed for name in PER_TIME if (value := getattr(record, name)) is not None}
    return shifted | rates | {
        "engine": "hybrid",
        "method": f"measured+{links_of(cell).out.method}",
        "dispatch_us": priced["dispatch"],
        "combine_us": priced["combine"] + priced["tp_reduce"],
        "count_exchange_us": priced["count_exchange"],
        "quantise_us": (record.quantise_us or 0.0) + priced["wire"],
        "staging_us": None,
        "compute_us": compute_us,
        "comm_fraction": max(0.0, exchange_us - hidden_us) / latency_us,
        "bound_by": "network" if 2 * (exchange_us - hidden_us) > latency_us else record.bound_by,
        **dict.fromkeys(MEASURED_ALONE),
    }  # fmt: skip


def _band(layers: list[LayerCost], *, latency_us: float, scale: float) -> dict[str, Any]:
    """The band of the priced messages about the latency; none by data sheet."""
    low, high = (scale * sum(cost.message_band_us[side] for cost in layers) for side in (0, 1))
    if not high:
        return {}
    return {
        "band_low_us": max(0.0, latency_us + low), "band_high_us": latency_us + high,
        "error_band_pct": 50 * (high - low) / latency_us,
    }  # fmt: skip


def _flags(cell: Cell, record: Record, layers: list[LayerCost], overlapped: Overlapped | None) -> str:
    flags = [flag for flag in (record.flags or "").split(",") if not flag.startswith("overlap_")]
    flags += ["network_priced", *links_of(cell).flags]
    if any(cost.message_band_us[1] for cost in layers):
        flags.append("band_of_messages")
    if overlapped is not None:
        flags += [f"overlap_hidden_us={overlapped.hidden_us:.4g}", *chunk_flags(cell, source_tokens(cell))]
    if any(cost.slowest not in cell.measured_ranks for cost in layers):
        flags.append("slowest_rank_not_measured")
    return ",".join(flag for flag in flags if flag)


def _relaid(rows: list[dict[str, Any]], priced: dict[str, float], *, cell_id: str) -> list[dict[str, Any]]:
    """Measured stages of each rank in their order, the exchanges among them replaced; later stages move along.

    Priced dispatch goes before permute and combine after the last expert stage, wherever the measured ones stood.
    """
    laid: list[dict[str, Any]] = []
    for rank in sorted({row["rank"] for row in rows}):
        own = [row for row in rows if row["rank"] == rank and row["stage"] not in EXCHANGES]
        own.sort(key=lambda row: row["start_us"])
        names = [row["stage"] for row in own]
        head = names.index("permute") if "permute" in names else 0
        tail = len(names) - names[::-1].index("unpermute") if "unpermute" in names else len(names)
        sequence = own[:head] + _priced_rows(cell_id, rank, priced, ("wire", *EXCHANGES[:2]))
        sequence += own[head:tail] + _priced_rows(cell_id, rank, priced, EXCHANGES[2:]) + own[tail:]
        start = 0.0
        for row in sequence:
            laid.append(row | {"start_us": start})
            start += row["duration_us"]
    return laid


def _pipeline_rows(cell_id: str, overlapped: Overlapped) -> list[dict[str, Any]]:
    """The pipeline of the measured rank, each stage on its stream."""
    return [
        {
            "cell_id": cell_id, "rank": overlapped.rank, "stream": span.stream, "stage": span.stage,
            "start_us": float(span.start_us_R[0]), "duration_us": float(span.duration_us_R[0]), "bytes": None,
            "flops": None,
        }
        for span in overlapped.spans
    ]  # fmt: skip


def _priced_rows(cell_id: str, rank: int, priced: dict[str, float], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            "cell_id": cell_id, "rank": rank, "stream": "network", "stage": "quantise" if name == "wire" else name,
            "start_us": 0.0,
            "duration_us": priced[name], "bytes": None, "flops": None,
        }
        for name in names
        if priced[name]
    ]  # fmt: skip
