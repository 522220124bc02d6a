"""Power from the driver's energy counter, and which of it or the rating a record names."""

import sys
from types import SimpleNamespace

import pytest

from tests.simulate.cells import make_cell
from workbench.measure import power
from workbench.run.throughput import throughput_fields


def library(*millijoules, error=None):
    readings = iter(millijoules)

    class NVMLError(Exception):
        pass

    def read(handle):
        if error:
            raise NVMLError(error)
        return next(readings)

    return SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=read,
    )  # fmt: skip


def test_watts_are_joules_over_seconds(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library(1_000_000, 1_350_000))
    before, after = power.energy_joules(0), power.energy_joules(0)
    assert power.mean_watts(before, after, seconds=0.5) == 700.0


def test_no_watts_without_a_gpu_an_answer_or_time(monkeypatch):
    assert power.energy_joules(None) is None
    monkeypatch.setitem(sys.modules, "pynvml", library(error="not supported"))
    assert power.energy_joules(0) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert power.energy_joules(0) is None
    assert power.mean_watts(None, 3.0, seconds=1.0) is None
    assert power.mean_watts(1.0, 3.0, seconds=power.SHORTEST_S / 2) is None
    assert power.mean_watts(3.0, 3.0, seconds=1.0) is None


def test_a_record_says_whose_power_it_is():
    cell = make_cell("qwen3-30b-a3b", ep=8, tokens=100)
    rated = throughput_fields(cell, latency_us=1000.0)
    assert rated["power_source"] == "rating"
    assert rated["joules_per_token"] == pytest.approx(700 * 1e-3 / 100)
    measured = throughput_fields(cell, latency_us=1000.0, measured_watts=350.0)
    assert measured["power_source"] == "measured"
    assert measured["joules_per_token"] == pytest.approx(rated["joules_per_token"] / 2)
