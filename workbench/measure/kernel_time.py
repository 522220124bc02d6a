"""Kernel time: how long the device itself was at work, without launches and gaps between kernels."""

from collections.abc import Callable, Iterable

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

PASSES = 3


def busy_us(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end) spans: kernels that run side by side count once.

    [(0, 4), (3, 6), (8, 9)] gives 7.
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def kernel_us(step: Callable[[], object], *, device: torch.device, before: Callable[[], None]) -> float | None:
    """Microseconds of one call in which at least one kernel or copy of ``step`` ran on the GPU, as its profiler tells:
    the mean of ``PASSES`` calls. None on a CPU, which has no kernels of its own.

    ``before`` runs ahead of each call and is not counted. A collective's kernel that waits for a peer is at work.
    """
    if device.type != "cuda":
        return None
    return sum(_profiled_us(step, device, before) for _ in range(PASSES)) / PASSES


def _profiled_us(step: Callable[[], object], device: torch.device, before: Callable[[], None]) -> float:
    before()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize(device)
    events = [event for event in recorded.events() if event.device_type == DeviceType.CUDA and is_work(event)]
    return busy_us((event.time_range.start, event.time_range.end) for event in events)


def is_work(event: FunctionEvent) -> bool:
    """Whether an event of the device is a kernel or a copy: not a named span around some, and not a wait."""
    return not event.is_user_annotation and not event.name.endswith(" Sync") and event.name != "Stream Wait Event"
