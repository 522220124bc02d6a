"""Measured layers between their token counts: what a family's physical model misses, interpolated.

The model carries a curve from point to point; what is interpolated, linearly over the logarithm of the mean rows of an
expert, is the logarithm of measured over modelled time. Beyond the ends the last ratio stays.
"""

from dataclasses import dataclass

import numpy as np

from workbench.simulate.kernel_model import Number


@dataclass(frozen=True)
class Curve:
    """``log_rows`` ascending, ``log_ratio`` of measured over modelled time at each."""

    log_rows: tuple[float, ...]
    log_ratio: tuple[float, ...]

    def factor(self, log_rows: float) -> float:
        """What the modelled time is multiplied by."""
        return float(np.exp(np.interp(log_rows, self.log_rows, self.log_ratio)))

    def is_inside(self, log_rows: float) -> bool:
        return self.log_rows[0] <= log_rows <= self.log_rows[-1]


def curve_of(log_rows: np.ndarray, us: np.ndarray, modelled_us: Number) -> Curve:
    """The curve of one shape's points; of several points of one size the mean stands."""
    ratio = np.log(us / modelled_us)
    sizes, where = np.unique(np.round(log_rows, 9), return_inverse=True)
    means = np.bincount(where, ratio) / np.bincount(where)
    return Curve(tuple(sizes.tolist()), tuple(means.tolist()))


def left_out(log_rows: np.ndarray, log_ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the log ratio that the other points of a curve give for each point, whether it is one of the two ends).

    Points are ascending. A curve of one point gives zeros.
    """
    count = len(log_rows)
    ends = np.zeros(count, bool)
    ends[[0, -1]] = True
    given = np.zeros(count)
    for at in range(count if count > 1 else 0):
        others = np.arange(count) != at
        given[at] = np.interp(log_rows[at], log_rows[others], log_ratio[others])
    return given, ends
