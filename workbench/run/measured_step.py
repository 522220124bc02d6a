"""What is measured of a step of any kind, in one order: samples first, undisturbed, and the memory that they took; the
check, which reads their last output; stages, bytes and legs from passes of their own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from workbench.comm.transport import Counters
from workbench.measure.cache import cache_flusher
from workbench.measure.clock import Clock
from workbench.measure.environment import sm_clock_mhz
from workbench.run.clocks import other_clocks
from workbench.run.context import RankContext
from workbench.run.exchange import Stage
from workbench.run.graph import capture
from workbench.run.legs import LINKS, Passage, physical_bytes, require_planned, time_legs
from workbench.run.sampling import Sampler
from workbench.run.trace import trace_of
from workbench.spec.scenario import Cell

STAGE_PASSES = 5
WAITS = ("count_exchange_s", "staging_s")


class Run(Protocol):
    """A prepared step: called as a whole, or stage by stage; ``traced_stages`` are those that a profile shows."""

    def __call__(self) -> object: ...

    def stages(self) -> list[Stage]: ...

    def traced_stages(self) -> list[Stage]: ...


def measured_step(
    cell: Cell, context: RankContext, run: Run, *, clock: Clock, started: float,
    check: Callable[[], dict[str, Any]], passages: Sequence[Passage],
) -> dict[str, Any]:  # fmt: skip
    """Fields of this rank's report that every kind of step has, those of ``check`` among them. All ranks must call it.

    ``started`` is when its preparation was; ``check`` agrees with the other ranks and raises CheckFailed.
    """
    context.synchronize()
    prepare_us = (time.monotonic() - started) * 1e6
    context.start_peak_memory()
    flush = cache_flusher(context.device, mode=cell.measure.cache, sharers=context.world)
    sampler = Sampler(context, clock, flush, cell.measure)
    first_call_us = sampler.timed(run)
    graphed = capture(run, context) if cell.measure.graph else None
    samples = sampler.sample(graphed or run)
    clock_mhz = (context.gpu_index is not None and sm_clock_mhz(context.gpu_index)) or None
    peak = context.peak_memory_bytes()
    checked = check()
    passes = stage_passes(samples.times_us, cell)
    stages, counters = stage_medians(run, sampler, clock, passes=passes)
    return {
        "samples_us": samples.times_us,
        "first_call_us": first_call_us,
        "prepare_us": prepare_us,
        "stages": stages,
        "timer": clock.timer,
        "graph": graphed is not None,
        "clock_mhz": clock_mhz,
        "watts": samples.watts,
        "peak_memory_bytes": peak,
        "hardware_name": context.hardware_name,
        **checked,
        **wire_fields(counters, passages, sampler, passes=passes),
        **other_clocks(graphed or run, sampler),
        "trace": trace_of(context, run.traced_stages),
    }


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
