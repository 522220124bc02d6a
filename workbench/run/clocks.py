"""The clocks beside the one that gives the latency: one step by event, wall and kernel time."""

from collections.abc import Callable

import numpy as np

from workbench.measure.clock import WallClock
from workbench.measure.kernel_time import kernel_us
from workbench.run.sampling import Sampler

PASSES = 5


def other_clocks(step: Callable[[], object], sampler: Sampler) -> dict[str, float | None]:
    """``wall_us`` (host clock around launch and wait, median of ``PASSES``) and ``kernel_us`` of a rank on a GPU.

    Empty on a CPU, where the wall clock is the only one and gives the latency. All ranks must call it.
    """
    context = sampler.context
    if context.device.type != "cuda":
        return {}
    wall = WallClock(synchronize=context.synchronize)
    times = []
    for _ in range(PASSES):
        sampler.flush()
        context.barrier()
        times.append(wall.time(step))

    def start() -> None:
        sampler.flush()
        context.barrier()

    return {"wall_us": float(np.median(times)), "kernel_us": kernel_us(step, device=context.device, before=start)}
