"""Kernel time: spans of the device put together, and nothing where there is no device."""

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent

from workbench.measure.clock import WallClock
from workbench.measure.kernel_time import busy_us, is_work, kernel_us


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0.0),
        ([(0, 4), (8, 9)], 5.0),
        ([(8, 9), (3, 6), (0, 4)], 7.0),
        ([(0, 10), (2, 3), (4, 5)], 10.0),
        ([(5, 5), (5, 6)], 1.0),
    ],
)
def test_kernels_side_by_side_count_once(spans, expected):
    assert busy_us(spans) == expected


@pytest.mark.parametrize(
    ("name", "annotated", "works"),
    [
        ("void at::native::add_kernel", False, True),
        ("Memcpy DtoD (Device -> Device)", False, True),
        ("nccl:all_to_all", True, False),
        ("Context Sync", False, False),
        ("Stream Wait Event", False, False),
    ],
)
def test_spans_and_waits_are_no_work(name, annotated, works):
    assert is_work(FunctionEvent(0, name, 0, 0.0, 1.0, is_user_annotation=annotated)) is works


def test_a_processor_has_no_kernel_time():
    assert kernel_us(lambda: 1 / 0, device=torch.device("cpu"), before=lambda: None) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel_time_leaves_out_launches_and_what_ran_before():
    small, large = torch.zeros(16, device="cuda"), torch.zeros(2**28, device="cuda")
    device = small.device

    def step() -> None:
        for _ in range(100):
            small.add_(1)

    step()
    wall_us = WallClock(synchronize=torch.cuda.synchronize).time(step)
    kernel = kernel_us(step, device=device, before=lambda: large.zero_())
    assert 50 < kernel < wall_us
