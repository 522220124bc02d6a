"""Samples of a step that several ranks take together, in lockstep and with one decision when to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.measure.clock import Clock
from workbench.measure.power import energy_joules, mean_watts
from workbench.measure.stopping import StoppingRule
from workbench.run.context import RankContext
from workbench.spec.dispatch import Measure


@dataclass(frozen=True)
class Samples:
    """``times_us`` [iterations] of this rank, without warm-up; the caller times the first call of all apart.

    ``watts`` is what its GPU drew meanwhile on average, what runs before each sample included; None where not known.
    """

    times_us: tuple[float, ...]
    sampling_s: float
    watts: float | None = None


@dataclass(frozen=True)
class Sampler:
    """How a step is sampled: the clock, what runs before each sample, and who samples beside this rank."""

    context: RankContext
    clock: Clock
    flush: Callable[[], None]
    measure: Measure

    def sample(self, step: Callable[[], object]) -> Samples:
        """Warm up, then sample until the interval of the slowest rank's median is narrow or the time is up.

        All ranks take the same number of samples: the decision rests on gathered times alone.
        """
        self._warm_up(step)
        rule = StoppingRule(self.measure.min_samples, self.measure.max_relative_ci, self.measure.max_seconds)
        own: list[float] = []
        slowest = np.empty(0)
        joules = energy_joules(self.context.gpu_index)
        start, elapsed = time.monotonic(), 0.0
        while not rule.is_enough(slowest, elapsed):
            batch = [self.timed(step) for _ in range(rule.next_batch(slowest, elapsed))]
            own += batch
            gathered = self.context.gather([time.monotonic() - start, *batch])
            elapsed = float(gathered[:, 0].max())
            slowest = np.concatenate([slowest, gathered[:, 1:].max(axis=0)])
        sampled_s = time.monotonic() - start
        watts = mean_watts(joules, energy_joules(self.context.gpu_index), seconds=sampled_s)
        return Samples(tuple(own), sampled_s, watts)

    def timed(self, step: Callable[[], object]) -> float:
        """Microseconds of one call, from a cold cache if asked for and with all ranks at the start."""
        self.flush()
        self.context.barrier()
        return self.clock.time(step)

    def _warm_up(self, step: Callable[[], object]) -> None:
        """``warmup`` calls, as far as half of the time allows."""
        if self.measure.warmup == 0:
            return
        first_us = float(self.context.gather([self.timed(step)]).max())
        allowed = int(self.measure.max_seconds / 2 * 1e6 / max(first_us, 1.0))
        for _ in range(min(self.measure.warmup - 1, allowed)):
            self.timed(step)
