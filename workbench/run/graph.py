"""CUDA graphs: one launch for a whole step, so that a small layer is not timed by its launches."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from workbench.run.context import RankContext

WARM_UP_CALLS = 2


@dataclass(frozen=True)
class Graphed:
    """A captured step; ``marks`` are events recorded by the graph itself before and after it, to time it without the
    launch of the graph (None where they cannot be had)."""

    graph: torch.cuda.CUDAGraph
    marks: tuple[torch.cuda.Event, torch.cuda.Event] | None

    def __call__(self) -> None:
        self.graph.replay()


def capture(step: Callable[[], object], context: RankContext) -> Graphed | None:
    """A replay of ``step``, or None where a graph cannot hold it: on a CPU, with messages, or with a host wait.

    ``step`` must leave its results in tensors that it makes itself; they keep their places over replays.
    """
    if context.device.type != "cuda" or context.world > 1:
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        marks = _marks()
        with torch.cuda.graph(graph):
            if marks:
                marks[0].record()
            step()
            if marks:
                marks[1].record()
    except RuntimeError:
        torch.cuda.synchronize()
        _renew_generator(context.device)
        return None
    graph.replay()
    torch.cuda.synchronize()
    return Graphed(graph, marks)


def _marks() -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
    """Events that a graph records; ROCm's graphs cannot."""
    if torch.version.hip:
        return None
    return torch.cuda.Event(enable_timing=True, external=True), torch.cuda.Event(enable_timing=True, external=True)


def _renew_generator(device: torch.device) -> None:
    """A capture that broke off leaves the default generator as if captured still; it gets a new state."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device=device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
