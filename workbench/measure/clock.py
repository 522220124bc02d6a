"""Clocks that wait for the device. Times are microseconds."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class Clock(Protocol):
    """Times calls; ``timer`` is the word for the record (``event`` or ``wall``)."""

    timer: str

    def time(self, call: Callable[[], object]) -> float:
        """Microseconds from the start of ``call`` until its work is done."""

    def time_stages(self, stages: Sequence[tuple[str, Callable[[], object]]]) -> list[tuple[str, float]]:
        """Microseconds of each stage, run in order."""


@dataclass(frozen=True)
class WallClock:
    """Monotonic clock around a call; ``synchronize`` returns once the device has finished (at once on a CPU)."""

    synchronize: Callable[[], None] = lambda: None
    now_ns: Callable[[], int] = time.perf_counter_ns
    timer: str = "wall"

    def time(self, call: Callable[[], object]) -> float:
        self.synchronize()
        start = self.now_ns()
        call()
        self.synchronize()
        return (self.now_ns() - start) / 1e3

    def time_stages(self, stages: Sequence[tuple[str, Callable[[], object]]]) -> list[tuple[str, float]]:
        return [(name, self.time(call)) for name, call in stages]


@dataclass(frozen=True)
class EventClock:
    """CUDA events on the current stream: what the device spent, without the host's launch time ahead of it.

    A call with ``marks`` (a captured step) records two events of its own around its work; their span leaves out the
    launch of a graph, about 8 us on an H200, that a step within a larger graph does not pay.
    """

    timer: str = "event"

    def time(self, call: Callable[[], object]) -> float:
        marks = getattr(call, "marks", None)
        if marks is not None:
            call()
            marks[1].synchronize()
            return marks[0].elapsed_time(marks[1]) * 1e3
        return self.time_stages([("call", call)])[0][1]

    def time_stages(self, stages: Sequence[tuple[str, Callable[[], object]]]) -> list[tuple[str, float]]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(stages) + 1)]
        marks[0].record()
        for (_, call), mark in zip(stages, marks[1:], strict=True):
            call()
            mark.record()
        marks[-1].synchronize()
        spans = [before.elapsed_time(after) * 1e3 for before, after in itertools.pairwise(marks)]
        return [(name, span) for (name, _), span in zip(stages, spans, strict=True)]


def clock_for(device: torch.device) -> Clock:
    """Events on a GPU, the monotonic clock on a CPU."""
    return EventClock() if device.type == "cuda" else WallClock()
