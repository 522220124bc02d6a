"""Reports of the ranks of one cell, merged into its record and tables.

R ranks, n iterations. ``latency_us`` is the median over iterations of the slowest rank in each.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench import __version__
from workbench.balance.dynamics import training_flags
from workbench.balance.history import placement_flags
from workbench.measure.stopping import median_interval
from workbench.run.chunks import chunk_flags, is_chunked
from workbench.run.describe import base_record_fields
from workbench.run.merged_bytes import above_link, bandwidth_fields, byte_fields, leg_fields
from workbench.run.merged_tables import table_rows
from workbench.run.rebalance import rebalance_flags
from workbench.run.report import PEER_FAILED, RankReport
from workbench.run.throughput import throughput_fields
from workbench.simulate.compute import above_peak, rates_of
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import AllToAllScope, Cell
from workbench.workload.loads import load_stats
from workbench.workload.recording import trace_flags
from workbench.workload.source import skew_flags
from workbench.workload.sources import source_tokens

METHOD = "measured"
COMMUNICATION = ("dispatch", "combine")
MAX_REASONS = 4
STAGES_SCALED = "stages_scaled"


def merge_reports(cell: Cell, reports: Sequence[RankReport]) -> Outcome:
    """The cell's outcome: ``ok`` only if every rank is; otherwise the reasons of the ranks that are a cause."""
    bad = [report for report in reports if report.status != "ok"]
    if bad:
        causes = [report for report in bad if PEER_FAILED not in report.flags] or bad
        reasons = list(dict.fromkeys(report.reason or "" for report in causes))[:MAX_REASONS]
        fields = {"status": causes[0].status, "reason": "; ".join(reasons), "method": METHOD}
        return Outcome(record=Record(**(base_record_fields(cell) | fields)))
    reports = [_graphed_stages(report) for report in reports]
    samples_Rn = np.array([report.samples_us for report in reports])
    fields = base_record_fields(cell) | {"status": "ok", "method": METHOD}
    fields["kernel_version"] = reports[0].kernel_version or __version__
    fields |= _time_fields(samples_Rn, reports) | _stage_fields(cell, reports) | byte_fields(cell, reports)
    fields |= _run_fields(cell, reports) | _load_fields(cell, reports)
    fields |= _rate_fields(cell, reports, latency_us=fields["latency_us"])
    fields |= leg_fields(reports) | bandwidth_fields(cell, reports, latency_us=fields["latency_us"])
    fields |= _clock_fields(reports, latency_us=fields["latency_us"])
    fields["flags"] = _flags(cell, reports, fields)
    return Outcome(record=Record(**fields), tables=table_rows(cell, reports))


def _graphed_stages(report: RankReport) -> RankReport:
    """Stages of a graphed step come from eager passes, whose launches the graph does not pay: their shares stay, their
    sum becomes the step's median where it is larger."""
    total, step_us = sum(us for _, us in report.stages), float(np.median(report.samples_us))
    if not report.graph or total <= step_us:
        return report
    stages = tuple((name, us * step_us / total) for name, us in report.stages)
    return replace(report, stages=stages, flags=(*report.flags, STAGES_SCALED))


def _time_fields(samples_Rn: np.ndarray, reports: Sequence[RankReport]) -> dict[str, Any]:
    slowest = samples_Rn.max(axis=0)
    low, high = median_interval(slowest)
    per_rank = np.median(samples_Rn, axis=1)
    p50, p95, p99 = np.percentile(slowest, [50, 95, 99]).tolist()
    return {
        "latency_us": p50,
        "latency_p50_us": p50,
        "latency_p95_us": p95,
        "latency_p99_us": p99,
        "latency_ci_low_us": low,
        "latency_ci_high_us": high,
        "rank_min_us": float(per_rank.min()),
        "rank_max_us": float(per_rank.max()),
        "num_samples": samples_Rn.shape[1],
        "first_call_us": max(report.first_call_us or 0.0 for report in reports),
        "prepare_us": max(report.prepare_us or 0.0 for report in reports),
    }


def _clock_fields(reports: Sequence[RankReport], *, latency_us: float) -> dict[str, Any]:
    """The step by each clock that was read: the latency by its own, the slowest rank's by the others."""
    read = {name: [us for report in reports if (us := getattr(report, name))] for name in ("kernel_us", "wall_us")}
    return {name: max(times) for name, times in read.items() if times} | {f"{reports[0].timer}_us": latency_us}


def _sum_of(report: RankReport, names: Sequence[str]) -> float:
    """Stages of these names, and those of the backward pass named after them (``dispatch.backward``)."""
    return sum(us for name, us in report.stages if name.split(".")[0] in names)


def _slowest_stages(reports: Sequence[RankReport]) -> RankReport:
    return max(reports, key=lambda report: sum(us for _, us in report.stages))


def hidden_us(cell: Cell, reports: Sequence[RankReport]) -> float | None:
    """Microseconds that overlap takes off: stages one after the other, without overlap, less the median step; of the
    rank whose stages take longest. None for a cell that overlaps nothing."""
    if not is_chunked(cell):
        return None
    slowest = _slowest_stages(reports)
    return max(0.0, sum(us for _, us in slowest.stages) - float(np.median(slowest.samples_us)))


def _stage_fields(cell: Cell, reports: Sequence[RankReport]) -> dict[str, Any]:
    """Stage times of the rank whose stages take longest, from passes of their own (see ``measured_layer``).

    Where messages are hidden they add up to more than the latency; ``comm_fraction`` is what is left of them in it.
    """
    slowest, hidden = _slowest_stages(reports), hidden_us(cell, reports) or 0.0
    total = sum(us for _, us in slowest.stages)
    counts_us = slowest.count_exchange_us or 0.0
    dispatch_us = max(_sum_of(slowest, ["dispatch"]) - counts_us, 0.0)
    combine_us, quantise_us = _sum_of(slowest, ["combine"]), _sum_of(slowest, ["quantise"])
    communication = dispatch_us + combine_us + counts_us
    return {
        "dispatch_us": dispatch_us,
        "combine_us": combine_us,
        "quantise_us": quantise_us,
        "count_exchange_us": counts_us,
        "staging_us": slowest.staging_us,
        "compute_us": total - communication - quantise_us,
        "comm_fraction": max(0.0, communication - hidden) / (total - hidden) if total > hidden else None,
    }


def _run_fields(cell: Cell, reports: Sequence[RankReport]) -> dict[str, Any]:
    first = reports[0]
    errors = [report.rel_error for report in reports if report.rel_error is not None]
    grad_errors = [report.grad_rel_error for report in reports if report.grad_rel_error is not None]
    sqnr = [report.sqnr_db for report in reports if report.sqnr_db is not None]
    clocks = [report.clock_mhz for report in reports if report.clock_mhz]
    peaks = [report.peak_memory_bytes for report in reports if report.peak_memory_bytes is not None]
    return {
        "timer": first.timer,
        "graph": all(report.graph for report in reports),
        "cache": cell.measure.cache,
        "math_path": first.math_path,
        "rel_error": max(errors, default=None),
        "grad_rel_error": max(grad_errors, default=None),
        "sqnr_db": min(sqnr, default=None),
        "clock_mhz": min(clocks, default=None),
        "weight_bytes": max(report.weight_bytes for report in reports),
        "peak_memory_bytes": max(peaks, default=None),
        "fits": True if peaks else None,
        "hit_rate": first.hit_rate,
        "stall_us": first.stall_us,
        "offload_bytes": first.offload_bytes,
    }


def _load_fields(cell: Cell, reports: Sequence[RankReport]) -> dict[str, Any]:
    if cell.model is None:
        return {"touched_experts": reports[0].touched_experts or None}
    whole_group = len(reports) == cell.ep
    pairs_R = np.array([report.pairs for report in reports])
    touched = {expert for report in reports for expert, pairs in report.expert_tokens if pairs}
    return {
        "load_max_over_mean": load_stats(pairs_R).max_over_mean if whole_group else None,
        "touched_experts": len(touched),
        "dropped_tokens": sum(report.dropped_tokens for report in reports),
    }


def _rate_fields(cell: Cell, reports: Sequence[RankReport], *, latency_us: float) -> dict[str, Any]:
    """Rates over the whole latency; of one GPU for FLOPs (mean over ranks) and memory (the rank that moves most)."""
    seconds = latency_us / 1e6
    flops = sum(report.flops for report in reports) / len(reports)
    moved = max(report.touched_bytes + report.activation_bytes for report in reports)
    fields: dict[str, Any] = {}
    if isinstance(cell.scope, AllToAllScope):
        return {"bound_by": "network"}
    fields["tflops"] = flops / seconds / 1e12 if flops else None
    fields["hbm_gb_per_s"] = moved / seconds / 1e9 if moved else None
    if cell.cluster.device == "cuda":
        rates = rates_of(cell.cluster.hardware, cell.precision)
        memory_us, math_us = moved / rates.bytes_per_us, flops / rates.expert_flops_per_us
        fields["roofline_fraction"] = max(memory_us, math_us) / latency_us
        fields["bound_by"] = "memory" if memory_us > math_us else "compute"
    if cell.model is not None and len(reports) == cell.ep:
        drawn = [report.watts for report in reports if report.watts is not None]
        watts = sum(drawn) / len(drawn) if len(drawn) == len(reports) else None
        fields |= throughput_fields(cell, latency_us=latency_us, measured_watts=watts)
    return fields


def _flags(cell: Cell, reports: Sequence[RankReport], fields: dict[str, Any]) -> str | None:
    flags = sorted({flag for report in reports for flag in report.flags})
    flags += [*trace_flags(cell), *skew_flags(cell), *placement_flags(cell)]
    flags += [*training_flags(cell), *rebalance_flags(cell)]
    if cell.model is not None and len(reports) < cell.ep:
        flags.append("ranks=" + "+".join(str(report.rank) for report in reports))
    hidden = hidden_us(cell, reports)
    if hidden is not None:
        flags += [f"overlap_hidden_us={hidden:.4g}", *chunk_flags(cell, source_tokens(cell))]
    if cell.cluster.device == "cuda" and above_peak(
        hbm_gb_per_s=fields.get("hbm_gb_per_s"),
        tflops=fields.get("tflops"),
        hardware=cell.cluster.hardware,
        precision=cell.precision,
    ):
        flags.append("above_peak")
    flags += above_link(cell, reports, latency_us=fields["latency_us"])
    return ",".join(flags) or None
