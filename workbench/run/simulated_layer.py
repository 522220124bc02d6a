"""Figures of a priced layer as a record and its tables.

Over several layers times and bytes add up; over several steps ``latency_us`` is the median and the parts are those of
the step at the median. Byte columns are totals over the group's ranks, dispatch and combine together, as
``workbench.comm.plan`` defines them.
"""

from statistics import median_low
from typing import Any

import numpy as np

from workbench.balance.dynamics import is_trained, training_flags
from workbench.balance.history import placement_flags
from workbench.comm.gradients import WIRE_DTYPE
from workbench.comm.payload import payload_bytes
from workbench.run.chunks import chunk_flags, is_chunked
from workbench.run.describe import base_record_fields
from workbench.run.offload_fields import offload_fields
from workbench.run.rebalance import rebalance_flags
from workbench.run.simulated_tables import link_rows, load_rows, memory_rows, stage_rows
from workbench.run.throughput import throughput_fields
from workbench.simulate.compute import above_peak, expert_flops, rates_of
from workbench.simulate.experts import Choice
from workbench.simulate.layer import LayerCost
from workbench.simulate.links import links_of, prices_sms
from workbench.simulate.memory import MemoryFit, model_fit
from workbench.simulate.support import trains
from workbench.simulate.traffic import GroupTraffic
from workbench.simulate.train import FLOPS_FACTOR
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import Cell
from workbench.workload.loads import load_stats
from workbench.workload.recording import trace_flags
from workbench.workload.source import skew_flags
from workbench.workload.sources import source_tokens


def layer_outcome(
    cell: Cell, steps: list[list[LayerCost]], *, first: GroupTraffic, fit: MemoryFit, worst_memory_rank: int,
    choice: Choice,
) -> Outcome:  # fmt: skip
    """The ``ok`` outcome. ``first`` is the traffic of layer 0 and step 0, whose loads and links fill the tables."""
    times = [sum(cost.latency_us for cost in layers) for layers in steps]
    layers = steps[times.index(median_low(times))]
    scale = cell.workload.layers / len(layers)
    fields = base_record_fields(cell) | {"status": "ok", "engine": "simulate", "method": choice.method}
    fields |= time_fields(cell, layers, scale=scale)
    fields |= rate_fields(cell, layers, latency_us=fields["latency_us"], scale=scale)
    fields |= byte_fields(cell, layers, first=first, scale=scale) | load_fields(first, scale=cell.workload.layers)
    fields |= fit_fields(fit) | band_fields(choice, layers, latency_us=fields["latency_us"], scale=scale)
    fields |= offload_fields(layers, scale=scale)
    flags = flags_text(cell, fields, first=first, layers=layers, num_steps=len(steps))
    fields["flags"] = ",".join(filter(None, (flags, *choice.flags, *message_flags(cell, layers)))) or None
    tables = {
        "stages": stage_rows(cell, steps[0][0]),
        "links": link_rows(cell, steps[0][0]),
        "loads": load_rows(cell, first),
        "memory": memory_rows(cell, fit, rank=worst_memory_rank),
        "samples": [],
    }
    return Outcome(record=Record(**fields), tables=tables)


def time_fields(cell: Cell, layers: list[LayerCost], *, scale: float) -> dict[str, Any]:
    """Times of the slowest rank. compute + quantise + exchanges exceed the latency by what overlap hides.

    As in a measured record, dispatch and combine hold the copies beside them, and quantise the encoding for the wire.

    ``rank_min_us`` and ``rank_max_us`` are busy times: what a rank waits for others is not in them.
    """

    def part(name: str) -> float:
        return scale * sum(cost.parts_us[name] for cost in layers)

    latency_us = scale * sum(cost.latency_us for cost in layers)
    exchange_us = scale * sum(cost.exchange_us for cost in layers)
    hidden_us = scale * sum(cost.hidden_us for cost in layers)
    busy_us_R = scale * np.sum([cost.busy_us_R for cost in layers], axis=0)
    return {
        "latency_us": latency_us,
        "rank_min_us": float(busy_us_R.min()),
        "rank_max_us": float(busy_us_R.max()),
        "compute_us": part("compute"),
        "quantise_us": part("quantise") + part("wire"),
        "dispatch_us": part("dispatch"),
        "combine_us": part("combine") + part("tp_reduce"),
        "count_exchange_us": part("count_exchange"),
        "comm_fraction": max(0.0, exchange_us - hidden_us) / latency_us if latency_us else None,
    }


def band_fields(choice: Choice, layers: list[LayerCost], *, latency_us: float, scale: float) -> dict[str, Any]:
    """The 80% band of the latency, which moves with the experts' time and the messages'; half its width in percent.

    None where the experts are priced by the roofline.
    """
    if choice.band is None:
        return {}
    expert_us = scale * sum(cost.expert_us for cost in layers)
    shifts = [
        (edge - 1) * expert_us + scale * sum(cost.message_band_us[side] for cost in layers)
        for side, edge in enumerate(choice.band)
    ]
    return {
        "kernel_version": choice.version,
        "band_low_us": max(0.0, latency_us + shifts[0]),
        "band_high_us": latency_us + shifts[1],
        "error_band_pct": 50 * (shifts[1] - shifts[0]) / latency_us if latency_us else None,
    }


def rate_fields(cell: Cell, layers: list[LayerCost], *, latency_us: float, scale: float) -> dict[str, Any]:
    """Rates of one GPU over the whole latency: expert FLOPs of its share, bytes of the slowest rank."""
    model = cell.model
    assert model is not None
    tokens = float(source_tokens(cell).mean())
    rates = rates_of(cell.cluster.hardware, cell.precision)
    fields: dict[str, Any] = {
        "math_path": rates.math_path,
        "bound_by": max(layers, key=lambda cost: cost.latency_us).bound_by,
    }
    if not latency_us or not tokens:
        return fields
    flops = expert_flops(
        tokens, top_k=model.top_k, hidden=model.hidden, intermediate=model.moe_intermediate,
        shared_intermediate=model.shared_intermediate,
    )  # fmt: skip
    if cell.scope.kind == "train_step":
        flops *= FLOPS_FACTOR
    return fields | throughput_fields(cell, latency_us=latency_us) | {
        "tflops": flops * cell.workload.layers / cell.parallel.tp / latency_us / 1e6,
        "hbm_gb_per_s": scale * sum(cost.memory_bytes for cost in layers) / latency_us / 1e3,
        "roofline_fraction": scale * sum(cost.ideal_us for cost in layers) / latency_us,
    }  # fmt: skip


def byte_fields(cell: Cell, layers: list[LayerCost], *, first: GroupTraffic, scale: float) -> dict[str, Any]:
    """Logical, physical and wire bytes of both directions, and the wire bytes by link class."""
    assert cell.model is not None
    hidden, dispatch = cell.model.hidden, cell.dispatch
    payload = {
        "dispatch": payload_bytes(hidden, dispatch.dispatch_dtype),
        "combine": payload_bytes(hidden, dispatch.combine_dtype),
    }
    if trains(cell):
        payload |= {f"{part}.backward": payload_bytes(hidden, WIRE_DTYPE) for part in ("combine", "dispatch")}
    physical = up = out = 0.0
    for leg in (leg for cost in layers for leg in cost.legs):
        up_rows, out_rows = float(leg.load.up_sent_R.sum()), float(leg.load.out_sent_R.sum())
        physical += (up_rows + out_rows) * payload[leg.name.rsplit(".", 1)[0]]
        up += up_rows * leg.row_bytes
        out += out_rows * leg.row_bytes
    pairs = float(first.pairs_R.sum()) * cell.workload.layers if first.hops else 0.0
    return {
        "logical_bytes": round(pairs * sum(payload.values())),
        "physical_bytes": round(scale * physical),
        "wire_bytes": round(scale * (up + out)),
        "scale_up_bytes": round(scale * up),
        "scale_out_bytes": round(scale * out),
    }


def message_flags(cell: Cell, layers: list[LayerCost]) -> list[str]:
    """How the messages were priced, and what else must be said of their links; nothing where all rows stay."""
    legs = [leg for cost in layers for leg in cost.legs if leg.load.sent.messages_R.any()]
    methods = sorted({leg.cost.method for leg in legs})
    return [f"messages={name}" for name in methods] + [*links_of(cell).flags] * bool(methods)


def load_fields(traffic: GroupTraffic, *, scale: float) -> dict[str, Any]:
    """Load of layer 0: pairs per rank, maximum over mean; logical experts touched by the whole group."""
    return {
        "load_max_over_mean": load_stats(traffic.pairs_R).max_over_mean,
        "touched_experts": traffic.touched_experts,
        "dropped_tokens": round(traffic.dropped_pairs * scale),
    }


def fit_fields(fit: MemoryFit) -> dict[str, Any]:
    """Memory columns; ``fits`` is None where the device's memory is not known."""
    return {
        "weight_bytes": fit.weight_bytes,
        "peak_memory_bytes": fit.needed_bytes,
        "fits": fit.fits if fit.capacity_bytes else None,
        "shortage_bytes": fit.shortage_bytes if fit.capacity_bytes else None,
    }


def flags_text(
    cell: Cell, fields: dict[str, Any], *, first: GroupTraffic, layers: list[LayerCost], num_steps: int
) -> str | None:
    """What a reader must know about this figure, comma separated; None when nothing."""
    flags = [*trace_flags(cell), *skew_flags(cell), *placement_flags(cell), *rebalance_flags(cell)]
    if first.scale != 1.0:
        flags.append(f"sampled_tokens={first.sampled_tokens}")
    if len(layers) < cell.workload.layers:
        flags.append(f"sampled_layers={len(layers)}")
    flags += training_flags(cell)
    if num_steps < cell.workload.steps and not is_trained(cell):
        flags.append(f"sampled_steps={num_steps}")
    if above_peak(
        hbm_gb_per_s=fields.get("hbm_gb_per_s"), tflops=fields.get("tflops"),
        hardware=cell.cluster.hardware, precision=cell.precision,
    ):  # fmt: skip
        flags.append("above_peak")
    if is_chunked(cell):
        hidden_us = sum(cost.hidden_us for cost in layers) * cell.workload.layers / len(layers)
        flags += [f"overlap_hidden_us={hidden_us:.4g}", *chunk_flags(cell, source_tokens(cell))]
    if cell.cluster.hardware.scale_out.penalties:
        flags.append("penalties=" + "+".join(cell.cluster.hardware.scale_out.penalties))
    if cell.dispatch.comm_sms is not None and not prices_sms(cell):
        flags.append("comm_sms_not_priced")
    if not model_fit(cell).fits:
        flags.append("whole_model_does_not_fit")
    return ",".join(flags) or None
