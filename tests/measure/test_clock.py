"""Clocks wait for the device; work and overheads stay apart."""

import threading
import time

import pytest
import torch

from workbench.measure.clock import WallClock, clock_for


class AsyncDevice:
    """A device whose work ends some time after the call returns."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.done = threading.Event()
        self.done.set()

    def launch(self) -> None:
        self.done.clear()
        threading.Timer(self.seconds, self.done.set).start()

    def synchronize(self) -> None:
        assert self.done.wait(timeout=5)


def test_e03_clock_waits_for_asynchronous_work():
    device = AsyncDevice(0.010)
    waiting = WallClock(synchronize=device.synchronize)
    assert waiting.time(device.launch) >= 10_000
    device.synchronize()
    assert WallClock().time(device.launch) < 10_000


def test_e03_matmul_is_not_faster_than_the_peak():
    size = 4096
    left, right = torch.randn(2, size, size, dtype=torch.bfloat16).unbind()
    best_us = min(clock_for(torch.device("cpu")).time(lambda: left @ right) for _ in range(2))
    tflops = 2 * size**3 / best_us / 1e6
    assert tflops < 100, "no CPU core of today multiplies bf16 that fast"


def test_stage_times_add_up_to_the_whole():
    clock = WallClock()
    stages = clock.time_stages([("sleep", lambda: time.sleep(0.01)), ("nothing", lambda: None)])
    assert [name for name, _ in stages] == ["sleep", "nothing"]
    assert stages[0][1] >= 10_000 > stages[1][1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_events_agree_with_the_wall_clock_on_long_work():
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    event = clock_for(matrix.device)
    wall = WallClock(synchronize=torch.cuda.synchronize)
    event.time(lambda: matrix @ matrix)
    events = sorted(event.time(lambda: matrix @ matrix) for _ in range(5))[2]
    walls = sorted(wall.time(lambda: matrix @ matrix) for _ in range(5))[2]
    assert events == pytest.approx(walls, rel=0.2)
    assert 2 * 8192**3 / events / 1e6 < 990
