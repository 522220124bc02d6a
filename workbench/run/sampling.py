"""Samples of a step that several ranks take together, in lockstep and with one decision when to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.measure.clock import Clock
from workbench.measure.stopping import StoppingRule
from workbench.run.context import RankContext
from workbench.spec.dispatch import Measure


@dataclass(frozen=True)
class Samples:
    """``times_us`` [iterations] of this rank; the first call of all stands apart in ``first_call_us``."""

    times_us: tuple[float, ...]
    first_call_us: float
    sampling_s: float


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
        first_call_us = self._timed(step)
        self._warm_up(step)
        rule = StoppingRule(self.measure.min_samples, self.measure.max_relative_ci, self.measure.max_seconds)
        own: list[float] = []
        slowest = np.empty(0)
        start, elapsed = time.monotonic(), 0.0
        while not rule.is_enough(slowest, elapsed):
            batch = [self._timed(step) for _ in range(rule.next_batch(slowest, elapsed))]
            own += batch
            gathered = self.context.gather([time.monotonic() - start, *batch])
            elapsed = float(gathered[:, 0].max())
            slowest = np.concatenate([slowest, gathered[:, 1:].max(axis=0)])
        return Samples(tuple(own), first_call_us, time.monotonic() - start)

    def _timed(self, step: Callable[[], object]) -> float:
        self.flush()
        self.context.barrier()
        return self.clock.time(step)

    def _warm_up(self, step: Callable[[], object]) -> None:
        """``warmup`` calls with the first, as far as half of the time allows."""
        if self.measure.warmup < 2:
            return
        second_us = float(self.context.gather([self._timed(step)]).max())
        allowed = int(self.measure.max_seconds / 2 * 1e6 / max(second_us, 1.0))
        for _ in range(min(self.measure.warmup - 2, allowed)):
            self._timed(step)
