"""A rank's training step measured: sampled, its output and its gradients checked, then taken apart stage by stage."""

import time
from typing import Any

import torch

from kernels.moe import math_path
from workbench.measure.cache import cache_flusher
from workbench.measure.clock import Clock
from workbench.measure.environment import sm_clock_mhz
from workbench.run.check import check_layer
from workbench.run.clocks import other_clocks
from workbench.run.context import RankContext
from workbench.run.encoded import recipe_of
from workbench.run.graph import capture
from workbench.run.legs import layer_passages
from workbench.run.measured_layer import pairs_per_expert, require_agreement, stage_medians, stage_passes, wire_fields
from workbench.run.prepare import Prepared, backend_of
from workbench.run.report import RankReport
from workbench.run.sampling import Sampler
from workbench.run.trace import trace_of
from workbench.run.train_check import check_gradients
from workbench.run.train_prepare import prepare_train, with_choices
from workbench.run.train_step import TrainRun
from workbench.spec.scenario import Cell

BF16_BYTES, FLOAT32_BYTES = 2, 4
FLOPS_PER_PAIR = 18
"""Times H * I: 6 forward, and twice that backward, for gradients of the inputs and of the weights."""


def measure_train(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """As ``measure_layer``, for forward and backward together; ``grad_rel_error`` is that of the last sampled step."""
    prepared, step = context.agreed(lambda: prepare_train(cell, context))
    require_agreement(prepared, context)
    run = TrainRun(with_choices(prepared, step))
    context.synchronize()
    prepare_us = (time.monotonic() - started) * 1e6
    context.start_peak_memory()
    flush = cache_flusher(context.device, mode=cell.measure.cache, sharers=context.world)
    sampler = Sampler(context, clock, flush, cell.measure)
    first_call_us = sampler.timed(run)
    graphed = capture(run, context) if cell.measure.graph else None
    samples = sampler.sample(graphed or run)
    measured_clock = (context.gpu_index is not None and sm_clock_mhz(context.gpu_index)) or None
    peak = context.peak_memory_bytes()
    grad_rel_error = context.agreed(lambda: check_gradients(cell, prepared, run))
    result = context.agreed(lambda: check_layer(cell, prepared, run))
    passes = stage_passes(samples.times_us, cell)
    stages, counters = stage_medians(run, sampler, clock, passes=passes)
    wire = wire_fields(counters, layer_passages(cell, prepared), sampler, passes=passes)
    return RankReport(
        rank=prepared.group_rank,
        samples_us=samples.times_us,
        first_call_us=first_call_us,
        prepare_us=prepare_us,
        stages=stages,
        rel_error=result.rel_error,
        grad_rel_error=grad_rel_error,
        sqnr_db=result.sqnr_db,
        timer=clock.timer,
        graph=graphed is not None,
        clock_mhz=measured_clock,
        peak_memory_bytes=peak,
        hardware_name=context.hardware_name,
        math_path=_math_path(cell, context),
        **wire,
        **other_clocks(graphed or run, sampler),
        **_work_fields(cell, prepared),
        trace=trace_of(context, run.traced_stages),
    )


def _work_fields(cell: Cell, prepared: Prepared) -> dict[str, Any]:
    """FLOPs of forward and backward; weights read forward and for dgrad, and their gradients written in float32."""
    layer, model = prepared.layer, cell.model
    assert model is not None
    counts = pairs_per_expert(prepared)
    pairs, touched = sum(n for _, n in counts), sum(n > 0 for _, n in counts)
    tokens = len(layer.x_TH)
    shared_bytes = layer.shared.nbytes if layer.shared is not None else 0
    pair_work = pairs * model.moe_intermediate + tokens * model.shared_intermediate
    elements = 3 * model.hidden * (touched * model.moe_intermediate + model.shared_intermediate)
    read = touched * layer.experts.nbytes // layer.num_slots + shared_bytes
    return {
        "flops": FLOPS_PER_PAIR * model.hidden * pair_work,
        "touched_bytes": 2 * read + FLOAT32_BYTES * elements,
        "activation_bytes": 4 * BF16_BYTES * model.hidden * len(prepared.tokens_BH),
        "touched_experts": touched,
        "weight_bytes": layer.experts.nbytes + shared_bytes,
        "pairs": pairs,
        "dropped_tokens": int(prepared.traffic.missing[prepared.group_rank].sum()),
        "expert_tokens": counts,
    }


def _math_path(cell: Cell, context: RankContext) -> str:
    capability = torch.cuda.get_device_capability(context.device) if context.device.type == "cuda" else None
    device_type, backend = context.device.type, backend_of(cell)
    return math_path(recipe_of(cell.precision), device_type=device_type, capability=capability, backend=backend)
