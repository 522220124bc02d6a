"""Time over bytes from measured tables: what a size-dependent efficiency is.

A curve is a straight line between neighbouring sizes, so each piece has a latency and a rate of its own; beyond the
last size the last piece goes on, and below the first its time stays. More bytes never take less time: where a table
says so, neighbours are averaged until it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class SizeCurve:
    """``sizes`` ascending, in bytes, and the microseconds ``us`` at each, never falling."""

    sizes: tuple[float, ...]
    us: tuple[float, ...]

    @property
    def floor_us(self) -> float:
        """What the smallest transfer takes."""
        return self.us[0]

    @cached_property
    def last_us_per_byte(self) -> float:
        if len(self.sizes) == 1:
            return self.us[0] / self.sizes[0]
        return (self.us[-1] - self.us[-2]) / (self.sizes[-1] - self.sizes[-2])

    def at(self, size: np.ndarray | float) -> np.ndarray:
        """Microseconds of ``size`` bytes."""
        beyond = np.maximum(0.0, np.asarray(size, float) - self.sizes[-1])
        return np.interp(size, self.sizes, self.us) + beyond * self.last_us_per_byte

    def busy_us(self, size: np.ndarray | float) -> np.ndarray:
        """Microseconds above those of the smallest transfer."""
        return self.at(size) - self.floor_us

    def on_links(self, times_as_fast: float) -> "SizeCurve":
        """The curve where every byte takes 1 / ``times_as_fast`` of its time, and latencies are what they were."""
        return SizeCurve(tuple(size * times_as_fast for size in self.sizes), self.us)


def size_curve(sizes: Sequence[float], us: Sequence[float]) -> SizeCurve:
    """The curve through measured points in any order; of several of one size the mean stands.

    Raises ValueError without any.
    """
    if not len(sizes):
        raise ValueError("a curve needs at least one measured size")
    distinct, where, count = np.unique(np.asarray(sizes, float), return_inverse=True, return_counts=True)
    means = np.bincount(where, np.asarray(us, float)) / count
    return SizeCurve(tuple(distinct.tolist()), tuple(_rising(means.tolist())))


def _rising(values: Sequence[float]) -> list[float]:
    """Nearest rising sequence: a value below those before it is averaged with them (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    return [mean for mean, size in blocks for _ in range(size)]


def left_out(sizes: np.ndarray, us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the time that a curve through the other points gives for each, whether it is one of the two ends).

    Sizes ascend and differ. Raises ValueError for fewer than two points.
    """
    count = len(sizes)
    if count < 2:
        raise ValueError("a point can be left out of two or more")
    kept = ~np.eye(count, dtype=bool)
    given = [float(size_curve(sizes[others], us[others]).at(sizes[at])) for at, others in enumerate(kept)]
    ends = np.zeros(count, bool)
    ends[[0, -1]] = True
    return np.array(given), ends
