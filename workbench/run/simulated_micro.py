"""Records of the scopes without a model: the bare exchange, the grouped GEMM, the encoding."""

from typing import Any

from workbench.run.describe import Shortage, base_record_fields, infeasible
from workbench.run.simulated_tables import leg_rows
from workbench.simulate.compute import Stage, above_peak, bound_by, rates_of
from workbench.simulate.formats import row_bytes
from workbench.simulate.memory import GIB
from workbench.simulate.micro import all_to_all_leg, grouped_gemm_bytes, grouped_gemm_stages, quantize_stages
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import AllToAllScope, Cell, GroupedGemmScope, QuantizeScope


def micro_outcome(cell: Cell, *, method: str) -> Outcome:
    """Price a scope that needs no model. Raises Unsupported where the scope cannot be priced."""
    scope = cell.scope
    if isinstance(scope, AllToAllScope):
        return _all_to_all(cell, scope, method=method)
    rates = rates_of(cell.cluster.hardware, cell.precision)
    if isinstance(scope, GroupedGemmScope):
        weights, needed = grouped_gemm_bytes(scope, cell.precision)
        stages = grouped_gemm_stages(scope, cell.precision, rates=rates)
    else:
        assert isinstance(scope, QuantizeScope)
        stages = quantize_stages(scope, cell.precision, rates=rates)
        weights, needed = 0, scope.rows * (2 * scope.columns + row_bytes(cell.precision.activations, scope.columns))
    short = _short_of_memory(cell, weights=weights, needed=needed, method=method)
    return short or _one_gpu(cell, stages, weights=weights, needed=needed, method=method)


def _short_of_memory(cell: Cell, *, weights: int, needed: int, method: str) -> Outcome | None:
    shortage = Shortage(weight_bytes=weights, needed_bytes=needed, capacity_bytes=cell.cluster.memory_bytes)
    if not shortage.capacity_bytes or not shortage.shortage_bytes:
        return None
    short = shortage.shortage_bytes
    reason = f"needs {needed / GIB:.2f} GiB of {shortage.capacity_bytes / GIB:.2f} GiB: short by {short / GIB:.2f} GiB"
    return infeasible(cell, f"{reason} ({short} bytes)", engine="simulate", method=method, shortage=shortage)


def _one_gpu(cell: Cell, stages: tuple[Stage, ...], *, weights: int, needed: int, method: str) -> Outcome:
    rates, hardware = rates_of(cell.cluster.hardware, cell.precision), cell.cluster.hardware
    times = [float(stage.duration_us_R(rates)[0]) for stage in stages]
    latency_us = sum(times)
    moved = float(sum(stage.bytes_R[0] for stage in stages))
    flops = float(sum(stage.flops_R[0] for stage in stages))
    ideal_us = max(moved / rates.bytes_per_us, float(sum(stage.math_us_R()[0] for stage in stages)))
    quantise_us = sum(time for stage, time in zip(stages, times, strict=True) if stage.name == "quantise")
    fields = base_record_fields(cell) | {
        "status": "ok", "engine": "simulate", "method": method, "latency_us": latency_us,
        "compute_us": latency_us - quantise_us, "quantise_us": quantise_us, "math_path": rates.math_path,
        "bound_by": bound_by(stages, rates, rank=0, network_us=0.0), "weight_bytes": weights or None,
        "peak_memory_bytes": needed, "fits": True if cell.cluster.memory_bytes else None,
    }  # fmt: skip
    if latency_us:
        fields |= {
            "tflops": flops / latency_us / 1e6 if flops else None,
            "hbm_gb_per_s": moved / latency_us / 1e3,
            "roofline_fraction": ideal_us / latency_us,
        }
    too_fast = above_peak(
        hbm_gb_per_s=fields.get("hbm_gb_per_s"), tflops=fields.get("tflops"), hardware=hardware,
        precision=cell.precision,
    )  # fmt: skip
    fields["flags"] = "above_peak" if too_fast else None
    return Outcome(record=Record(**fields), tables=_tables(stages=_stage_rows(cell, stages, times)))


def _stage_rows(cell: Cell, stages: tuple[Stage, ...], times: list[float]) -> list[dict[str, Any]]:
    rows, start = [], 0.0
    for stage, time in zip(stages, times, strict=True):
        rows.append(
            {
                "cell_id": cell.cell_id, "rank": 0, "stream": "main", "stage": stage.name, "start_us": start,
                "duration_us": time, "bytes": round(float(stage.bytes_R[0])), "flops": round(float(stage.flops_R[0])),
            }
        )  # fmt: skip
        start += time
    return rows


def _all_to_all(cell: Cell, scope: AllToAllScope, *, method: str) -> Outcome:
    """algbw = bytes_per_rank / time; busbw = algbw * (R - 1) / R, as nccl-tests defines them; None for one rank."""
    leg = all_to_all_leg(cell, scope)
    latency_us, num_ranks = leg.cost.total_us, cell.ep
    algbw = scope.bytes_per_rank / latency_us / 1e3 if latency_us else None
    up, out = round(float(leg.load.up_sent_R.sum())), round(float(leg.load.out_sent_R.sum()))
    fields = base_record_fields(cell) | {
        "status": "ok", "engine": "simulate", "method": method, "latency_us": latency_us, "dispatch_us": latency_us,
        "comm_fraction": 1.0 if latency_us else None, "bound_by": "network", "rank_max_us": latency_us,
        "rank_min_us": float(leg.cost.rank_us_R.min()), "logical_bytes": scope.bytes_per_rank * num_ranks,
        "physical_bytes": up + out, "wire_bytes": up + out, "scale_up_bytes": up, "scale_out_bytes": out,
        "algbw_gb_per_s": algbw, "busbw_gb_per_s": algbw * (num_ranks - 1) / num_ranks if algbw else None,
    }  # fmt: skip
    rows = {
        "cell_id": cell.cell_id, "rank": 0, "stream": "network", "stage": "dispatch", "start_us": 0.0,
        "duration_us": latency_us, "bytes": round(float(leg.load.up_sent_R[0] + leg.load.out_sent_R[0])), "flops": 0,
    }  # fmt: skip
    return Outcome(record=Record(**fields), tables=_tables(stages=[rows], links=leg_rows(cell.cell_id, leg)))


def _tables(
    *, stages: list[dict[str, Any]], links: list[dict[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    return {"stages": stages, "links": links or [], "loads": [], "memory": [], "samples": []}
