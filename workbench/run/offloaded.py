"""A rank's layer with its experts in host memory, measured over the workload's steps.

One sample is a pass over all ``workload.steps``, each with its own tokens and routing (``route_all(step=)``), back to
back, so that a copy started early runs beside the work it hides behind; every time in the record is that of a pass
over the number of steps. Before each pass, outside the clock, the cache goes back to its state at the start, so all
passes meet the same hits. ``resident_fraction`` of the rank's experts have a slot; the first ones lie in them at the
start, or for ``cache: pinned`` those most asked for over the steps, all but an eighth of the slots. ``prefetch``: the
host knows the experts of this step and the next, as a layer does whose router looks ahead; without it, each step asks
the device. One step alone shows what the slots hold at the start; reuse needs several.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from kernels.expert_parts import host_parts, map_parts
from kernels.moe import ExpertWeights
from kernels.offload import ExpertCache
from kernels.offloaded_layer import offloaded_layer
from workbench.measure.cache import cache_flusher
from workbench.measure.clock import Clock
from workbench.run.check import check_layer
from workbench.run.context import RankContext
from workbench.run.encoded import encode_experts
from workbench.run.inputs import weight_bytes
from workbench.run.layer import LayerRun, Stage
from workbench.run.measured_layer import math_path_of, work_fields
from workbench.run.measured_step import stage_medians, stage_passes, wire_fields
from workbench.run.prepare import BACKENDS, Prepared, place_experts, prepare_layer
from workbench.run.report import RankReport
from workbench.run.sampling import Sampler
from workbench.run.trace import trace_of
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell

STALL_PASSES = 3
SPARE = 8
"""With pinned experts, one slot in this many is left to the others."""
ENCODED_AT_ONCE = 2 * 2**30
STEP_FIELDS = ("flops", "touched_bytes", "activation_bytes", "pairs")


@dataclass(frozen=True)
class OffloadedPass:
    """All steps of the cell, one after the other, over one cache."""

    steps: tuple[Prepared, ...]
    runs: tuple[LayerRun, ...]
    cache: ExpertCache

    def __call__(self) -> None:
        for run in self.runs:
            run()

    def stages(self) -> list[Stage]:
        """Stages of every step in order."""
        return [stage for run in self.runs for stage in run.stages()]


def measure_offloaded(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """Samples of whole passes, then stalls, hits and bytes of passes of their own, then the check and the stages."""
    _require_offloadable(cell, context)
    whole = _prepare(cell, context)
    context.synchronize()
    prepare_us = (time.monotonic() - started) * 1e6
    context.start_peak_memory()
    sampler = Sampler(context, clock, _flusher(cell, context, whole.cache), cell.measure)
    count = len(whole.runs)
    first_call_us = sampler.timed(whole)
    samples = sampler.sample(whole)
    times_us = tuple(us / count for us in samples.times_us)
    peak = context.peak_memory_bytes()
    fields = _cache_fields(whole, sampler)
    checks = [check_layer(cell, whole.steps[at], whole.runs[at]) for at in {0, count - 1}]
    passes = stage_passes(tuple(us * count for us in times_us), cell)
    stages, counters = stage_medians(whole, sampler, clock, passes=passes)
    return RankReport(
        rank=whole.steps[0].group_rank,
        samples_us=times_us,
        watts=samples.watts,
        first_call_us=first_call_us / count,
        prepare_us=prepare_us,
        stages=_per_step(stages, count),
        rel_error=max(check.rel_error for check in checks),
        sqnr_db=min((check.sqnr_db for check in checks if check.sqnr_db is not None), default=None),
        timer=clock.timer,
        math_path=math_path_of(cell, context),
        peak_memory_bytes=peak,
        hardware_name=context.hardware_name,
        **fields,
        **wire_fields(counters, (), sampler),
        **_mean_work(cell, whole),
        trace=trace_of(context, whole.stages),
    )


def _require_offloadable(cell: Cell, context: RankContext) -> None:
    offload = cell.offload
    if offload.compute != "gpu":
        raise Unsupported(f"offload.compute: {offload.compute} cannot be measured yet; gpu can")
    if cell.kernel not in BACKENDS:
        raise Unsupported(f"kernel: {cell.kernel} cannot run experts from host memory; known: {', '.join(BACKENDS)}")
    if context.world > 1 or (cell.ep > 1 and cell.parallel.ranks == "all"):
        raise Unsupported(
            "offload.tier: host is measured on one rank with nothing sent; take parallel.ep 1, or one of the group's"
            " ranks (parallel.ranks: [0]) with dispatch.strategy none"
        )


def _prepare(cell: Cell, context: RankContext) -> OffloadedPass:
    """Routing and tokens of every step, experts in host memory, a cache in front of them."""
    expert_map, group_rank = place_experts(cell), cell.measured_ranks[0]
    experts = tuple(int(e) for e in expert_map.slots[group_rank])
    host, sizes = _host_experts(cell, experts, device=context.device)
    steps = [prepare_layer(cell, context, step=step, experts=sizes) for step in range(cell.workload.steps)]
    asked = [_asked(prepared) for prepared in steps]
    cache = _cache(cell, host, asked, device=context.device)
    steps = [
        replace(prepared, layer=replace(prepared.layer, peer=call))
        for prepared, call in zip(steps, _calls(cell, steps, asked, cache), strict=True)
    ]
    return OffloadedPass(tuple(steps), tuple(LayerRun(prepared.layer) for prepared in steps), cache)


def _host_experts(cell: Cell, experts: tuple[int, ...], *, device: torch.device) -> tuple[ExpertWeights, ExpertWeights]:
    """All experts encoded on the device, as many at a time as it need hold, and kept by the host; and their sizes."""
    at_once = max(1, ENCODED_AT_ONCE // max(1, weight_bytes(cell.model, 1)))
    chunks = [experts[start : start + at_once] for start in range(0, len(experts), at_once)]
    one = replace(encode_experts(cell, experts[:1], device=device, keep=False), packed13=None, packed2=None)
    sizes = map_parts(one, lambda part: torch.empty((len(experts), *part.shape[1:]), dtype=part.dtype, device="meta"))
    stacks = (encode_experts(cell, chunk, device=device, keep=False) for chunk in chunks)
    return host_parts(stacks, num_experts=len(experts), pinned=device.type == "cuda"), sizes


def _asked(prepared: Prepared) -> list[int]:
    """Local experts that the step's tokens go to, ascending."""
    _, ids, _ = prepared.layer.exchange.received()
    return [slot for slot in np.unique(ids.cpu().numpy()).tolist() if slot >= 0]


def _cache(cell: Cell, host: ExpertWeights, asked: list[list[int]], *, device: torch.device) -> ExpertCache:
    count = host.num_experts
    slots = min(count, max(1, round(count * cell.offload.resident_fraction)))
    counts = np.bincount(np.concatenate([*map(np.array, asked), []]).astype(int), minlength=count)
    by_use = np.argsort(-counts, kind="stable").tolist()
    keep = count if slots == count else slots - max(1, slots // SPARE)
    return ExpertCache(
        host,
        num_slots=slots,
        device=device,
        policy=cell.offload.cache,
        pinned=by_use[:keep],
        initial=by_use[:slots] if cell.offload.cache == "pinned" else range(slots),
    )


def _calls(cell: Cell, steps: list[Prepared], asked: list[list[int]], cache: ExpertCache) -> list[Callable]:
    """The experts of each step as one call over the cache."""
    known = [{"experts": now, "next_experts": after} for now, after in zip(asked, [*asked[1:], []], strict=True)]
    return [
        partial(
            offloaded_layer,
            cache=cache,
            weight_on=prepared.layer.weight_on,
            backend=prepared.layer.backend,
            **(ahead if cell.offload.prefetch else {}),
        )
        for prepared, ahead in zip(steps, known, strict=True)
    ]


def _flusher(cell: Cell, context: RankContext, cache: ExpertCache) -> Callable[[], None]:
    flush = cache_flusher(context.device, mode=cell.measure.cache)

    def reset() -> None:
        cache.reset()
        flush()
        context.synchronize()

    return reset


def _cache_fields(whole: OffloadedPass, sampler: Sampler) -> dict[str, Any]:
    """Of one step, averaged over a pass: hit rate, microseconds that work waited for copies (median pass), bytes."""
    count, stalls = len(whole.runs), []
    for _ in range(STALL_PASSES):
        sampler.flush()
        whole()
        stalls.append(whole.cache.counters.stall_us() / count)
    counters = whole.cache.counters
    return {
        "hit_rate": counters.hit_rate,
        "stall_us": float(np.median(stalls)),
        "offload_bytes": round(counters.copied_bytes / count),
    }


def _per_step(stages: tuple[tuple[str, float], ...], count: int) -> tuple[tuple[str, float], ...]:
    """Mean of each stage over the steps, in the order of a step."""
    width = len(stages) // count
    us = np.array([value for _, value in stages]).reshape(count, width).mean(axis=0)
    return tuple(zip([name for name, _ in stages[:width]], us.tolist(), strict=True))


def _mean_work(cell: Cell, whole: OffloadedPass) -> dict[str, Any]:
    """Work of a step on average; experts touched and their tokens are those of the last."""
    steps = [work_fields(cell, prepared) for prepared in whole.steps]
    means = {name: round(sum(step[name] for step in steps) / len(steps)) for name in STEP_FIELDS}
    shared = whole.steps[0].layer.shared
    resident = whole.cache.num_slots * whole.cache.expert_bytes + (shared.nbytes if shared is not None else 0)
    return steps[-1] | means | {"weight_bytes": resident}
