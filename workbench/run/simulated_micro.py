"""Records of the scopes without a model: the bare exchange, the grouped GEMM, the encoding."""

from typing import Any

import numpy as np

from workbench.comm.bandwidth import algbw, busbw
from workbench.run.describe import Shortage, base_record_fields, infeasible
from workbench.run.simulated_tables import leg_rows
from workbench.simulate.bare import BareCost, bare_cost
from workbench.simulate.compute import Stage, above_peak, bound_by, rates_of
from workbench.simulate.formats import row_bytes
from workbench.simulate.layer import Leg
from workbench.simulate.links import links_of
from workbench.simulate.memory import GIB
from workbench.simulate.micro import grouped_gemm_bytes, grouped_gemm_stages, quantize_stages
from workbench.simulate.network import band_us
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import AllToAllScope, Cell, GroupedGemmScope, QuantizeScope


def micro_outcome(cell: Cell, *, method: str) -> Outcome:
    """Price a scope that needs no model. Raises Unsupported where the scope cannot be priced."""
    scope = cell.scope
    if isinstance(scope, AllToAllScope):
        return _all_to_all(cell, method=method)
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


def _all_to_all(cell: Cell, *, method: str) -> Outcome:
    """Bandwidths as nccl-tests defines them, of the rank that has most to send or receive; None for one rank."""
    cost = bare_cost(cell)
    method, shift_us = next((leg.cost.method for leg in cost.legs), method), band_us(leg.cost for leg in cost.legs)
    rows, latency_us, num_ranks = cost.rows, cost.latency_us, cell.ep
    up, out = (round(float(_sent(cost.legs, link).sum())) for link in ("up", "out"))
    size = max(rows.num_rows, int(rows.blocks_R.max()) * num_ranks) * rows.row_bytes
    seconds, leaving = latency_us / 1e6, (up + out) // rows.row_bytes
    fields = base_record_fields(cell) | {
        "status": "ok", "engine": "simulate", "method": method, "latency_us": latency_us,
        "dispatch_us": cost.dispatch_us, "quantise_us": cost.quantise_us,
        "comm_fraction": cost.dispatch_us / latency_us if latency_us else None, "bound_by": "network",
        "rank_max_us": latency_us, "rank_min_us": float(cost.rank_us_R.min()) + sum(cost.pack_us) + cost.quantise_us,
        "logical_bytes": num_ranks * rows.num_rows * rows.payload_bytes, "wire_bytes": up + out,
        "physical_bytes": leaving * rows.payload_bytes, "scale_up_bytes": up, "scale_out_bytes": out,
        "algbw_gb_per_s": algbw(size, seconds=seconds, num_ranks=num_ranks),
        "busbw_gb_per_s": busbw(size, seconds=seconds, num_ranks=num_ranks),
    } | _leg_times(cost.legs)  # fmt: skip
    if any(shift_us):
        fields |= {
            "band_low_us": max(0.0, latency_us + shift_us[0]), "band_high_us": latency_us + shift_us[1],
            "error_band_pct": 50 * (shift_us[1] - shift_us[0]) / latency_us,
        }  # fmt: skip
    fields["flags"] = ",".join(links_of(cell).flags) or None
    links = [row for leg in cost.legs for row in leg_rows(cell.cell_id, leg)]
    return Outcome(record=Record(**fields), tables=_tables(stages=_bare_stages(cell, cost), links=links))


def _sent(legs: tuple[Leg, ...], link: str) -> np.ndarray:
    """Bytes each rank sends over a class of links, [R]."""
    return sum(getattr(leg.load, f"{link}_sent_R") * leg.row_bytes for leg in legs)


def _leg_times(legs: tuple[Leg, ...]) -> dict[str, float | None]:
    """Hops that cross nodes and those that do not, added up as the measured ones are."""
    times: dict[str, float | None] = {"scale_up_us": None, "scale_out_us": None}
    for leg in legs:
        name = "scale_out_us" if leg.load.out_sent_R.any() else "scale_up_us" if leg.load.up_sent_R.any() else None
        if name is not None:
            times[name] = (times[name] or 0.0) + leg.cost.total_us
    return times


def _bare_stages(cell: Cell, cost: BareCost) -> list[dict[str, Any]]:
    """Encoding and decoding together first, then a stage for every hop, packing included."""
    spans = [("main", "quantise", cost.quantise_us, None)] if cost.quantise_us else []
    for leg, pack_us in zip(cost.legs, cost.pack_us, strict=True):
        sent = round(float(leg.load.up_sent_R[0] + leg.load.out_sent_R[0]) * leg.row_bytes)
        spans.append(("network", "dispatch", leg.cost.total_us + pack_us, sent))
    rows, start = [], 0.0
    for stream, stage, duration_us, sent in spans:
        rows.append(
            {
                "cell_id": cell.cell_id, "rank": 0, "stream": stream, "stage": stage, "start_us": start,
                "duration_us": duration_us, "bytes": sent, "flops": 0,
            }
        )  # fmt: skip
        start += duration_us
    return rows


def _tables(
    *, stages: list[dict[str, Any]], links: list[dict[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    return {"stages": stages, "links": links or [], "loads": [], "memory": [], "samples": []}
