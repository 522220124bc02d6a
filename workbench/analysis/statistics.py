"""Statistics of raw samples; latencies are microseconds.

A repeat is a run of its own: new processes, new memory, compiled code loaded anew. Samples within a repeat share all
that, so they tell how steady it was and not how far the next repeat lies from it; only repeats do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import digamma, polygamma
from scipy.stats import mannwhitneyu
from scipy.stats import t as student_t

RESAMPLES = 2000
CONFIDENCE = 0.95
LEAST_VARIANCE = 1e-8
"""Of a log median: repeats that agree beyond 0.01% agree by the grain of the clock, not by nature."""
LEAST_POOL = 8
"""Cells from which on their variances say something about one another's."""
MOST_DEGREES = 30.0
"""What the pool may be worth at most, so that a cell whose own repeats scatter wildly is still heard."""


@dataclass(frozen=True)
class Series:
    """What one cell measured: the slowest rank of every iteration in order of time, and the launch of each."""

    us: np.ndarray
    repeat: np.ndarray

    @property
    def num_repeats(self) -> int:
        return len(np.unique(self.repeat))

    def parts(self) -> list[np.ndarray]:
        """The samples of every repeat, sorted."""
        return [np.sort(self.us[self.repeat == number]) for number in np.unique(self.repeat)]

    def log_medians(self) -> np.ndarray:
        """Logarithm of each repeat's median."""
        return np.log([float(np.median(part)) for part in self.parts()])


@dataclass(frozen=True)
class Noise:
    """How repeats of one thing scatter: variance of a log median between repeats, and how many degrees of freedom
    that knowledge is worth."""

    variance: float = 0.0
    degrees: float = 0.0


@dataclass(frozen=True)
class Contrast:
    """Candidate over baseline from the medians of repeats: log ratio, its standard error and degrees of freedom."""

    log_ratio: float
    error: float
    degrees: float

    @property
    def p_value(self) -> float:
        """Two-sided, against no difference."""
        return float(2 * student_t.sf(abs(self.log_ratio) / self.error, self.degrees))

    def interval(self, confidence: float) -> tuple[float, float]:
        """Of the ratio."""
        reach = float(student_t.ppf(0.5 + confidence / 2, self.degrees)) * self.error
        return float(np.exp(self.log_ratio - reach)), float(np.exp(self.log_ratio + reach))


def slowest_series(samples: pd.DataFrame) -> dict[str, Series]:
    """The series of every cell in ``samples`` (cell_id, rank, iteration, repeat, us)."""
    known = samples.dropna(subset=["us"])
    known = known.assign(repeat=known["repeat"].fillna(0).astype(int), us=known["us"].astype(float))
    slowest = known.groupby(["cell_id", "repeat", "iteration"], dropna=False, sort=True)["us"].max().reset_index()
    return {
        cell_id: Series(us=rows["us"].to_numpy(float), repeat=rows["repeat"].to_numpy(int))
        for cell_id, rows in slowest.groupby("cell_id", sort=False)
    }


def own_spread(series: Series) -> float:
    """A/A spread: how far the medians of parts of one cell's own series lie apart, as a fraction.

    The parts are its repeats, or with a single one the two halves in time. What a cell disagrees with itself by, it
    cannot be compared to better than.
    """
    if series.num_repeats > 1:
        medians = np.exp(series.log_medians())
    else:
        medians = np.array([np.median(half) for half in np.array_split(series.us, 2) if len(half)])
    return float(medians.max() / max(medians.min(), 1e-9) - 1.0)


def ratio_interval(candidate: Series, baseline: Series) -> tuple[float, float]:
    """Bootstrap interval (95%, percentile, seeded) of the ratio of geometric means of the repeats' medians.

    Both stages are drawn anew: repeats with replacement, then samples within each.
    """
    ratios = np.exp(_bootstrap(candidate, seed=1) - _bootstrap(baseline, seed=2))
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _bootstrap(series: Series, *, seed: int) -> np.ndarray:
    """Mean log median of RESAMPLES resamples.

    The median of m draws from m sorted values is the value at the median of m uniform numbers, which is distributed
    as Beta((m + 1) / 2, (m + 1) / 2): one draw instead of m, and the same distribution for odd m.
    """
    rng = np.random.default_rng(seed)
    medians = np.empty((series.num_repeats, RESAMPLES, series.num_repeats))
    for number, part in enumerate(series.parts()):
        shape = (len(part) + 1) / 2
        places = (rng.beta(shape, shape, size=medians.shape[1:]) * len(part)).astype(int)
        medians[number] = np.log(part[np.minimum(places, len(part) - 1)])
    chosen = rng.integers(series.num_repeats, size=medians.shape[1:])
    return np.take_along_axis(medians, chosen[None], axis=0)[0].mean(axis=-1)


def rank_p_value(candidate: np.ndarray, baseline: np.ndarray) -> float:
    """Two-sided Mann-Whitney U: the chance of such an order if both came from one distribution."""
    return float(mannwhitneyu(candidate, baseline, alternative="two-sided").pvalue)


def pooled_noise(series: Sequence[Series]) -> Noise:
    """What the repeats of many cells say together about how repeats scatter: an A/A measurement over all of them.

    Their variances are taken as draws around a common one (scaled inverse chi-square), its place and width fitted by
    the moments of the log variances: Smyth 2004, "Linear models and empirical Bayes methods". No knowledge from fewer
    than LEAST_POOL cells.
    """
    medians = [one.log_medians() for one in series if one.num_repeats > 1]
    if len(medians) < LEAST_POOL:
        return Noise()
    degrees = np.array([len(each) - 1 for each in medians])
    variances = np.maximum([float(np.var(each, ddof=1)) for each in medians], LEAST_VARIANCE)
    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    width = float(np.var(logs, ddof=1) - np.mean(polygamma(1, degrees / 2)))
    if width <= 0:
        return Noise(variance=float(np.average(variances, weights=degrees)), degrees=MOST_DEGREES)
    prior = min(2 * _inverse_trigamma(width), MOST_DEGREES)
    return Noise(variance=float(np.exp(logs.mean() + digamma(prior / 2) - np.log(prior / 2))), degrees=prior)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's steps on its reciprocal, which is nearly a straight line."""
    x = 0.5 + 1.0 / value
    for _ in range(50):
        step = polygamma(1, x) * (1 - polygamma(1, x) / value) / polygamma(2, x)
        x += step
        if abs(step) < 1e-9 * x:
            break
    return float(x)


def contrast(candidate: Series, baseline: Series, noise: Noise) -> Contrast:
    """Welch's idea with a pooled variance: that of the two cells' repeats, drawn towards what all cells show.

    Raises ValueError when the repeats leave no degree of freedom.
    """
    new, old = candidate.log_medians(), baseline.log_medians()
    own_degrees = len(new) + len(old) - 2
    if own_degrees < 1:
        raise ValueError("two repeats are needed on one side at least")
    own = (np.var(new) * len(new) + np.var(old) * len(old)) / own_degrees
    degrees = own_degrees + noise.degrees
    variance = (own * own_degrees + noise.variance * noise.degrees) / degrees
    error = float(np.sqrt(max(variance, LEAST_VARIANCE) * (1 / len(new) + 1 / len(old))))
    return Contrast(log_ratio=float(new.mean() - old.mean()), error=error, degrees=float(degrees))


def false_discovery(p_values: Sequence[float]) -> np.ndarray:
    """Benjamini-Hochberg: for each p the share of false ones among all that are at least as small (q value)."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    q = np.empty_like(p)
    q[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return q


def noise_floor(series: Mapping[str, Series], *, share: float = 0.95) -> float:
    """A/A: the ratio minus one that ``share`` of all pairs of repeats of one same cell stay below.

    NaN when no cell has two repeats.
    """
    apart = []
    for one in series.values():
        medians = one.log_medians()
        apart += [abs(a - b) for place, a in enumerate(medians) for b in medians[:place]]
    return float(np.expm1(np.quantile(apart, share))) if apart else float("nan")
