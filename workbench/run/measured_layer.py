"""A rank's layer measured: prepared, sampled, checked, then taken apart stage by stage."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kernels.moe import math_path
from workbench.comm.transport import Counters
from workbench.measure.cache import cache_flusher
from workbench.measure.clock import Clock
from workbench.measure.environment import sm_clock_mhz
from workbench.run.agreement import require_same_routing, routing_digest
from workbench.run.check import check_layer
from workbench.run.clocks import other_clocks
from workbench.run.context import RankContext
from workbench.run.encoded import recipe_of
from workbench.run.graph import capture
from workbench.run.legs import LINKS, Passage, layer_passages, physical_bytes, require_planned, time_legs
from workbench.run.overlapped_layer import layer_run
from workbench.run.peer import Peer, find_peer, with_peer
from workbench.run.prepare import Prepared, backend_of, prepare_layer
from workbench.run.report import RankReport
from workbench.run.sampling import Sampler
from workbench.run.trace import trace_of
from workbench.spec.scenario import Cell

STAGE_PASSES = 5
BF16_BYTES = 2
WAITS = ("count_exchange_s", "staging_s")


def measure_layer(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """Latency samples first, undisturbed; the check reads their last output; stages come from passes of their own."""
    peer = find_peer(cell, context.device)
    prepared, peer_fields = context.agreed(lambda: _prepare(cell, context, peer))
    require_agreement(prepared, context)
    run = layer_run(cell, prepared.layer)
    context.synchronize()
    prepare_us = (time.monotonic() - started) * 1e6
    context.start_peak_memory()
    flush = cache_flusher(context.device, mode=cell.measure.cache, sharers=context.world)
    sampler = Sampler(context, clock, flush, cell.measure)
    first_call_us = sampler.timed(run)
    step = capture(run, context) if cell.measure.graph else None
    samples = sampler.sample(step or run)
    measured_clock = (context.gpu_index is not None and sm_clock_mhz(context.gpu_index)) or None
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
        sqnr_db=result.sqnr_db,
        timer=clock.timer,
        graph=step is not None,
        clock_mhz=measured_clock,
        **wire,
        **other_clocks(step or run, sampler),
        **work_fields(cell, prepared, context),
        **peer_fields,
        trace=trace_of(context, run.traced_stages),
    )


def _prepare(cell: Cell, context: RankContext, peer: Peer | None) -> tuple[Prepared, dict[str, Any]]:
    """The layer, and what a report says of the peer that runs it."""
    prepared = prepare_layer(cell, context)
    if peer is None:
        return prepared, {"math_path": math_path_of(cell, context)}
    prepared, converted_us = with_peer(prepared, peer)
    flags = (f"conversion_ms={converted_us / 1e3:.3g}",)
    return prepared, {"math_path": peer.math_path, "kernel_version": peer.version, "flags": flags}


def require_agreement(prepared: Prepared, context: RankContext) -> None:
    """Raises DispatchMismatch on ranks that route differently from most, PeerFailed on the others."""
    digest = routing_digest(prepared.traffic, prepared.expert_map)
    context.agreed(lambda: require_same_routing(context, digest))


def stage_passes(times_us: tuple[float, ...], cell: Cell) -> int:
    """As many passes as a quarter of the time allows, one at least; the same on every rank as far as times agree."""
    return STAGE_PASSES if float(np.median(times_us)) * STAGE_PASSES <= cell.measure.max_seconds * 2.5e5 else 1


def stage_medians(
    run: Callable[[], Any], sampler: Sampler, clock: Clock, *, passes: int
) -> tuple[tuple[tuple[str, float], ...], Counters]:
    """Median of each stage over passes; the counters hold the bytes of one pass and the median of their times."""
    transport = sampler.context.transport
    passes = int(sampler.context.gather([passes]).min())
    times: list[list[tuple[str, float]]] = []
    counted: list[Counters] = []
    for _ in range(passes):
        sampler.flush()
        sampler.context.barrier()
        transport.reset()
        times.append(clock.time_stages(run.stages()))
        counted.append(transport.reset())
    medians = np.median([[us for _, us in row] for row in times], axis=0)
    names = [name for name, _ in times[0]]
    waits = {name: float(np.median([getattr(one, name) for one in counted])) for name in WAITS}
    return tuple(zip(names, medians.tolist(), strict=True)), replace(counted[-1], **waits)


def wire_fields(
    counters: Counters, passages: Sequence[Passage], sampler: Sampler, *, passes: int = 1
) -> dict[str, Any]:
    """What ``counters`` hold of one pass, which must be what ``passages`` say (DispatchMismatch), and every leg's time.

    All ranks must call it.
    """
    context = sampler.context
    context.agreed(lambda: require_planned(counters, passages, rank=context.rank))
    passes = int(context.gather([passes]).min())
    return {
        "count_exchange_us": counters.count_exchange_s * 1e6,
        "staging_us": counters.staging_s * 1e6,
        "wire": {link: getattr(counters, f"{link}_bytes") for link in LINKS},
        "physical_bytes": physical_bytes(passages, rank=context.rank),
        "legs": time_legs(passages, context, sampler.clock, passes=passes),
    }


def work_fields(cell: Cell, prepared: Prepared, context: RankContext) -> dict[str, Any]:
    """What this rank computed and moved: FLOPs of its experts (three products of 2HI a pair), bytes it had to read."""
    layer, model = prepared.layer, cell.model
    counts = pairs_per_expert(prepared)
    pairs, touched = int(sum(n for _, n in counts)), sum(n > 0 for _, n in counts)
    shared_bytes = layer.shared.nbytes if layer.shared is not None else 0
    tokens, rows = len(layer.x_TH), len(prepared.tokens_BH)
    shared_flops = 6 * tokens * model.hidden * model.shared_intermediate if layer.shared is not None else 0
    return {
        "flops": 6 * pairs * model.hidden * model.moe_intermediate + shared_flops,
        "touched_bytes": touched * layer.experts.nbytes // layer.num_slots + shared_bytes,
        "activation_bytes": 2 * BF16_BYTES * model.hidden * rows,
        "touched_experts": touched,
        "weight_bytes": layer.experts.nbytes + shared_bytes,
        "peak_memory_bytes": context.peak_memory_bytes(),
        "pairs": pairs,
        "dropped_tokens": int(prepared.traffic.dropped_R[prepared.group_rank]),
        "expert_tokens": counts,
        "hardware_name": context.hardware_name,
    }


def pairs_per_expert(prepared: Prepared) -> tuple[tuple[int, int], ...]:
    """(expert, pairs computed here) of every slot of the rank."""
    _, ids_BC, _ = prepared.layer.exchange.received()
    local = ids_BC[ids_BC >= 0].cpu().numpy()
    counts = np.bincount(local, minlength=prepared.layer.num_slots)
    slots = prepared.expert_map.slots[prepared.group_rank]
    return tuple(zip(slots.tolist(), counts.tolist(), strict=True))


def math_path_of(cell: Cell, context: RankContext) -> str:
    """How our kernels form the products of this cell on this rank's device."""
    capability = torch.cuda.get_device_capability(context.device) if context.device.type == "cuda" else None
    return math_path(
        recipe_of(cell.precision),
        device_type=context.device.type,
        capability=capability,
        backend=backend_of(cell),
    )
