"""Capturing a step in a CUDA graph, and what is left when it cannot be."""

import pytest
import torch

from workbench.measure.clock import EventClock
from workbench.run.context import open_context
from workbench.run.graph import capture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_a_step_that_waits_is_not_captured_and_random_numbers_work_afterwards():
    context = open_context(rank=0, world=1, device_type="cuda", ranks_per_node=1)
    ones = torch.ones(4, device="cuda")
    assert capture(lambda: ones.sum().item(), context) is None
    assert torch.randn(1000, device="cuda").std() > 0.5
    results = []
    replay = capture(lambda: results.append(ones * 2), context)
    ones.fill_(3)
    replay()
    clock = EventClock()
    within, around = (min(clock.time(call) for _ in range(5)) for call in (replay, lambda: replay()))
    assert 0 < within < around
    assert torch.equal(results[-1], torch.full((4,), 6.0, device="cuda"))
