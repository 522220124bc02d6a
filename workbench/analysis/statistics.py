"""Statistics of raw samples; latencies are microseconds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, mannwhitneyu

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Series:
    """What one cell measured: the slowest rank of every iteration in order of time, and the launch of each."""

    us: np.ndarray
    repeat: np.ndarray

    @property
    def num_repeats(self) -> int:
        return len(np.unique(self.repeat))


def slowest_series(samples: pd.DataFrame) -> dict[str, Series]:
    """The series of every cell in ``samples`` (cell_id, rank, iteration, repeat, us)."""
    keys = ["cell_id", "repeat", "iteration"]
    slowest = samples.dropna(subset=["us"]).groupby(keys, dropna=False, sort=True)["us"].max().reset_index()
    return {
        cell_id: Series(us=rows["us"].to_numpy(float), repeat=rows["repeat"].fillna(0).to_numpy(int))
        for cell_id, rows in slowest.groupby("cell_id", sort=False)
    }


def own_spread(series: Series) -> float:
    """A/A spread: how far the medians of parts of one cell's own series lie apart, as a fraction.

    The parts are its launches, or with a single launch the two halves in time. What a cell disagrees with itself
    by, it cannot be compared to better than.
    """
    if series.num_repeats > 1:
        parts = [series.us[series.repeat == number] for number in np.unique(series.repeat)]
    else:
        parts = [half for half in np.array_split(series.us, 2) if len(half)]
    medians = [float(np.median(part)) for part in parts]
    return max(medians) / max(min(medians), 1e-9) - 1.0


def ratio_interval(candidate: np.ndarray, baseline: np.ndarray) -> tuple[float, float]:
    """Percentile bootstrap interval (95%) of median(candidate) / median(baseline), seeded."""
    if np.ptp(candidate) == 0 and np.ptp(baseline) == 0:
        return (float(candidate[0] / baseline[0]),) * 2
    result = bootstrap(
        (candidate, baseline),
        lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis),
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def rank_p_value(candidate: np.ndarray, baseline: np.ndarray) -> float:
    """Two-sided Mann-Whitney U: the chance of such an order if both came from one distribution."""
    return float(mannwhitneyu(candidate, baseline, alternative="two-sided").pvalue)
