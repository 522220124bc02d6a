"""CUDA graphs: one launch for a whole step, so that a small layer is not timed by its launches."""

from collections.abc import Callable

import torch

from workbench.run.context import RankContext

WARM_UP_CALLS = 2


def capture(step: Callable[[], object], context: RankContext) -> Callable[[], None] | None:
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
        with torch.cuda.graph(graph):
            step()
    except RuntimeError:
        torch.cuda.synchronize()
        _renew_generator(context.device)
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def _renew_generator(device: torch.device) -> None:
    """A capture that broke off leaves the default generator as if captured still; it gets a new state."""
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device=device).manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
