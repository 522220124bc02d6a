"""Warm-up, first call and work outside the clock stay out of the samples."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from workbench.run import sampling
from workbench.run.sampling import Sampler
from workbench.spec.dispatch import Measure


class Alone:
    """A group of one, without a GPU."""

    gpu_index = None

    def gather(self, values):
        return np.array([values])

    def barrier(self):
        pass


@dataclass
class Scripted:
    """A clock whose calls take the times it is given, then one millisecond each."""

    times_us: list[float]
    timer: str = "wall"
    calls: int = field(default=0)

    def time(self, call):
        call()
        self.calls += 1
        return self.times_us.pop(0) if self.times_us else 1_000.0


def sampler(clock, **measure):
    return Sampler(Alone(), clock, lambda: None, Measure(**({"min_samples": 5, "max_seconds": 1.0} | measure)))


def test_e10_compile_time_stays_out_with_a_warm_up():
    clock = Scripted([1_000_000.0])
    samples = sampler(clock, warmup=1).sample(lambda: None)
    assert set(samples.times_us) == {1_000.0}


def test_e10_without_warm_up_the_caller_keeps_the_first_call_apart():
    clock = Scripted([1_000_000.0])
    tool = sampler(clock, warmup=0)
    first_call_us = tool.timed(lambda: None)
    samples = tool.sample(lambda: None)
    assert first_call_us == 1_000_000.0
    assert np.median(samples.times_us) == 1_000.0


@pytest.mark.parametrize("warmup", [0, 1, 50])
def test_e14_warm_up_does_not_change_the_rate(warmup):
    samples = sampler(Scripted([]), warmup=warmup).sample(lambda: None)
    assert sum(samples.times_us) == pytest.approx(1_000.0 * len(samples.times_us))


def test_slow_steps_cut_the_warm_up_short():
    clock = Scripted([400_000.0] * 50)
    sampler(clock, warmup=50, max_seconds=0.8).sample(lambda: None)
    assert clock.calls < 10


def test_every_sample_starts_from_a_flushed_cache():
    flushed = []
    tool = Sampler(Alone(), Scripted([]), lambda: flushed.append(1), Measure(warmup=3, min_samples=5, max_seconds=1.0))
    samples = tool.sample(lambda: None)
    assert len(flushed) == 3 + len(samples.times_us)


def test_a_gpus_power_is_that_of_the_samples(monkeypatch):
    readings = iter([100.0, 450.0])
    monkeypatch.setattr(sampling, "energy_joules", lambda index: next(readings))
    monkeypatch.setattr(sampling, "mean_watts", lambda before, after, seconds: after - before)
    assert sampler(Scripted([]), warmup=1).sample(lambda: None).watts == 350.0
