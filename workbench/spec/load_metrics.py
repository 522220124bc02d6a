"""How uneven a load is, in figures whose definitions stand beside them: one source for records and reports."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Definition:
    """A figure: its name in words, its formula over the counts n_i (i of N), its value when even and at worst."""

    title: str
    formula: str
    even: str
    worst: str
    reads: str


DEFINITIONS: dict[str, Definition] = {
    "max_over_mean": Definition(
        "max/mean", "max(n) / mean(n)", "1", "N",
        "how many times longer the busiest one takes than if all were even; what a barrier waits for",
    ),
    "mean_over_max": Definition(
        "mean/max", "mean(n) / max(n)", "1", "1/N",
        "the share of the time that the average one works: balancedness as SGLang and vLLM report it",
    ),
    "cv": Definition(
        "CV", "sqrt(mean((n - mean(n))^2)) / mean(n)", "0", "sqrt(N - 1)",
        "coefficient of variation: standard deviation of the whole population over its mean",
    ),
    "gini": Definition(
        "Gini", "sum over i, j of |n_i - n_j| / (2 N^2 mean(n))", "0", "(N - 1)/N",
        "mean difference of two over twice the mean; sees all of them, not only the busiest",
    ),
    "max_vio": Definition(
        "MaxVio", "(max(n) - mean(n)) / mean(n)", "0", "N - 1",
        "maximal violation of balance, as DeepSeek's loss-free balancing defines it",
    ),
}  # fmt: skip
"""Zero counts are counted. Of several layers or steps each figure is taken by itself and then averaged over those that
saw a token: adding layers up first would call two ranks even that are busy in turn."""

LEVELS: dict[str, str] = {
    "expert": "(token, expert) pairs by logical expert, over all ranks",
    "rank": "(token, expert) pairs that each rank computes, replicas counted where they are",
    "source": "tokens that enter each rank before dispatch",
    "rank_out": "bytes that each rank sends to others",
    "pair_scale_up": "bytes from one rank to another of its node, over all ordered pairs",
    "pair_scale_out": "bytes from one rank to another of another node, over all ordered pairs",
    "node_out": "bytes that leave each node for others (of simulated cells the copies of tokens sent out to experts)",
    "node_in": "bytes that enter each node from others (of simulated cells likewise)",
}
"""What is counted. Expert load is not link load: a skew over experts may hardly show between ranks."""


def definition_lines(levels: Iterable[str] = tuple(LEVELS)) -> list[str]:
    """A line for each figure and for each of the ``levels``, to stand beside a table."""
    figures = [
        f"{d.title} = {d.formula}; {d.even} when even, {d.worst} when one has all: {d.reads}"
        for d in DEFINITIONS.values()
    ]
    return figures + [f"{level}: {LEVELS[level]}" for level in LEVELS if level in set(levels)]


@dataclass(frozen=True)
class LoadStats:
    """Figures of ``DEFINITIONS``; None where nothing was counted."""

    max_over_mean: float | None
    mean_over_max: float | None
    cv: float | None
    gini: float | None
    max_vio: float | None


def load_stats(counts: np.ndarray) -> LoadStats:
    """Statistics of counts [N] or [layers, N]."""
    counts_LN = np.atleast_2d(np.asarray(counts, dtype=np.float64))
    counts_LN = counts_LN[counts_LN.sum(axis=1) > 0]
    if counts_LN.size == 0:
        return LoadStats(None, None, None, None, None)
    mean = counts_LN.mean(axis=1)
    peak = counts_LN.max(axis=1)
    num = counts_LN.shape[1]
    ranks = 2 * np.arange(1, num + 1) - num - 1
    gini = (np.sort(counts_LN, axis=1) * ranks).sum(axis=1) / (num * num * mean)
    figures = (peak / mean, mean / peak, counts_LN.std(axis=1) / mean, gini, (peak - mean) / mean)
    return LoadStats(*(float(figure.mean()) for figure in figures))
