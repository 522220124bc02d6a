"""A whole model's estimate as a record and its tables.

``method`` is that of the routed experts with ``+roofline``, for attention and dense parts are always priced so. The
band is that of the expert stages too. Of two pools the columns describe the decode pool, but for ``num_gpus``,
``prefill_gpus``, ``decode_gpus`` and what is divided by them.
"""

from typing import Any

from workbench.balance.history import placement_flags
from workbench.run.chunks import chunk_flags, is_chunked
from workbench.run.describe import Shortage, base_record_fields, infeasible
from workbench.run.offload_fields import host_does_not_fit, offload_fields
from workbench.run.simulated_layer import byte_fields, fit_fields, load_fields
from workbench.run.simulated_tables import link_rows, load_rows, stage_rows
from workbench.run.throughput import cost_fields
from workbench.simulate.compute import rates_of
from workbench.simulate.experts import Choice, choice_of
from workbench.simulate.memory import MemoryFit
from workbench.simulate.model import moe_cell
from workbench.simulate.offload import host_shortage_bytes
from workbench.simulate.serving import Rates, price_serving, serving_fits
from workbench.simulate.traffic import group_traffic
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import Cell
from workbench.workload.recording import trace_flags
from workbench.workload.source import skew_flags
from workbench.workload.sources import source_tokens

ROOFLINE = "roofline"


def model_outcome(cell: Cell) -> Outcome:
    """``ok`` with rates and memory, or ``infeasible`` with the shortage of the pool that lacks most."""
    fits = serving_fits(cell)
    pool = max(fits, key=lambda name: fits[name].shortage_bytes)
    if not fits[pool].fits:
        return _does_not_fit(cell, fits[pool], pool=pool)
    if host_shortage_bytes(cell, layers=cell.model.moe_layers):
        return host_does_not_fit(cell, layers=cell.model.moe_layers)
    rates, traffic = price_serving(cell), group_traffic(cell)
    choice = choice_of(moe_cell(cell), traffic)
    fields = base_record_fields(cell) | {"status": "ok", "engine": "simulate", "method": method_name(choice)}
    fields |= rate_fields(cell, rates) | time_fields(rates) | band_fields(choice, rates)
    layers, scale = list(rates.step.moe), rates.step.layers_each
    fields |= byte_fields(cell, layers, first=traffic, scale=scale)
    fields |= offload_fields(layers, scale=scale)
    fields |= load_fields(traffic, scale=cell.model.moe_layers) | fit_fields(fits.get("decode", fits[pool]))
    fields["math_path"] = rates_of(cell.cluster.hardware, cell.precision).math_path
    fields["bound_by"] = bound_by(rates)
    fields["flags"] = ",".join(_flags(cell, rates, choice)) or None
    tables = {
        "stages": _stage_rows(cell, rates),
        "links": link_rows(cell, layers[0]),
        "loads": load_rows(cell, traffic),
        "memory": [row for name, fit in fits.items() for row in _memory_rows(cell, name, fit)],
        "samples": [],
    }
    return Outcome(record=Record(**fields), tables=tables)


def method_name(choice: Choice) -> str:
    """What priced the experts, and that the rest is roofline."""
    return ROOFLINE if choice.method == ROOFLINE else f"{choice.method}+{ROOFLINE}"


def _does_not_fit(cell: Cell, fit: MemoryFit, *, pool: str) -> Outcome:
    shortage = Shortage(weight_bytes=fit.weight_bytes, needed_bytes=fit.needed_bytes, capacity_bytes=fit.capacity_bytes)
    method = None if cell.method == "best" else cell.method
    where = f"the {pool} pool " if pool else "the whole model "
    return infeasible(cell, where + fit.text, engine="simulate", method=method, shortage=shortage)


def rate_fields(cell: Cell, rates: Rates) -> dict[str, Any]:
    """Latencies, throughput over every GPU of all pools, and what tokens cost."""
    fields = {
        "latency_us": rates.latency_us,
        "ttft_us": rates.ttft_us,
        "tpot_us": rates.tpot_us,
        "tokens_per_s": rates.tokens_per_s,
        "tokens_per_s_per_gpu": rates.tokens_per_s_per_gpu,
        "tokens_per_s_per_user": 1e6 / rates.tpot_us if rates.tpot_us else None,
        "prefill_gpus": rates.prefill_gpus,
        "decode_gpus": rates.decode_gpus,
    }
    if cell.serving is not None:
        fields["num_gpus"] = rates.gpus
    return fields | cost_fields(rates.tokens_per_s, usd_per_hour=rates.usd_per_hour, watts=rates.watts)


def time_fields(rates: Rates) -> dict[str, Any]:
    """Parts of the described pool's step; compute holds attention and dense parts. Exchanges that overlap hides are in
    their columns, so the parts may exceed the latency."""
    step = rates.step
    dense_us = step.attention_us + step.dense_us + step.head_us + step.extra_us
    exchange_us = step.layers_each * sum(cost.exchange_us for cost in step.moe) + step.reductions_us + step.hop_us
    hidden_us = step.hidden_us + step.layers_each * sum(cost.hidden_us for cost in step.moe)
    return {
        "compute_us": step.part("compute") + dense_us,
        "quantise_us": step.part("quantise") + step.part("wire"),
        "dispatch_us": step.part("dispatch"),
        "combine_us": step.part("combine") + step.part("tp_reduce"),
        "count_exchange_us": step.part("count_exchange"),
        "comm_fraction": max(0.0, exchange_us - hidden_us) / step.latency_us if step.latency_us else None,
    }


def band_fields(choice: Choice, rates: Rates) -> dict[str, Any]:
    """The band of the described step, which moves with the experts' time and the messages'; None by roofline."""
    if choice.band is None or not rates.step.latency_us:
        return {}
    latency_us, step = rates.latency_us, rates.step
    scale = latency_us / step.latency_us
    low, high = (
        scale * ((edge - 1) * step.expert_us + shift)
        for edge, shift in zip(choice.band, step.message_band_us, strict=True)
    )
    return {
        "kernel_version": choice.version,
        "band_low_us": max(0.0, latency_us + low),
        "band_high_us": latency_us + high,
        "error_band_pct": 50 * (high - low) / latency_us,
    }


def bound_by(rates: Rates) -> str:
    """What takes most of the step: the MoE layers' own bound, or attention."""
    step = rates.step
    if step.attention_us > step.moe_us:
        return "attention"
    return max(step.moe, key=lambda cost: cost.latency_us).bound_by


def _flags(cell: Cell, rates: Rates, choice: Choice) -> list[str]:
    flags = [*trace_flags(cell), *skew_flags(cell), *placement_flags(cell), "dense_roofline", *rates.flags]
    if len(rates.step.moe) < cell.model.moe_layers:
        flags.append(f"sampled_layers={len(rates.step.moe)}")
    if is_chunked(cell):
        hidden_us = rates.step.hidden_us + rates.step.layers_each * sum(cost.hidden_us for cost in rates.step.moe)
        flags += [f"overlap_hidden_us={hidden_us:.4g}", *chunk_flags(cell, source_tokens(cell))]
    return [*flags, *choice.flags]


def _stage_rows(cell: Cell, rates: Rates) -> list[dict[str, Any]]:
    """One MoE layer as its stages, and what surrounds it over all layers as one row each, behind them."""
    rows, step = stage_rows(cell, rates.step.moe[0]), rates.step
    start = max((row["start_us"] + row["duration_us"] for row in rows), default=0.0)
    around = {
        "attention.all_layers": step.attention_us,
        "dense_mlp.all_layers": step.dense_us,
        "embedding_and_logits": step.head_us,
        "attention_tp_reduce": step.reductions_us,
        "optimizer_and_gradient_sums": step.extra_us,
    }
    for name, us in around.items():
        if us:
            rows.append({
                "cell_id": cell.cell_id, "rank": 0, "stream": "model", "stage": name, "start_us": start,
                "duration_us": us, "bytes": None, "flops": None,
            })  # fmt: skip
            start += us
    return rows


def _memory_rows(cell: Cell, pool: str, fit: MemoryFit) -> list[dict[str, Any]]:
    """Bytes by part of the fullest GPU; of the prefill pool with its name before the part."""
    before = "prefill." if pool == "prefill" else ""
    return [
        {"cell_id": cell.cell_id, "rank": 0, "what": before + part, "bytes": size} for part, size in fit.parts.items()
    ]
