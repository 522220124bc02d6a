"""Load statistics. Expert load is not link load: count what reaches experts, ranks and links apart.

Definitions, for the counts n_i of one layer over its experts or ranks (zero counts are counted):
max_over_mean = max / mean; mean_over_max its inverse ("balancedness"); max_vio = (max - mean) / mean;
cv = population standard deviation / mean; gini = sum_ij |n_i - n_j| / (2 N^2 mean).
Of several layers each figure is taken per layer, then averaged over the layers that saw a token.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LoadStats:
    """Figures of the module docstring; None where no token was counted."""

    max_over_mean: float | None
    mean_over_max: float | None
    cv: float | None
    gini: float | None
    max_vio: float | None


def load_stats(counts: np.ndarray) -> LoadStats:
    """Statistics of counts [N] or [layers, N], tokens per expert or per rank."""
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


def slot_counts(slots: np.ndarray, num_slots: int) -> np.ndarray:
    """Tokens per slot (or expert), int64 [num_slots]; -1 marks a dropped pair and is left out."""
    flat = np.asarray(slots).ravel()
    return np.bincount(flat[flat >= 0], minlength=num_slots)


def rank_counts(slots: np.ndarray, *, num_ranks: int, slots_per_rank: int) -> np.ndarray:
    """(Token, expert) pairs per rank, int64 [R], from global slot ids rank * S + s."""
    return slot_counts(slots, num_ranks * slots_per_rank).reshape(num_ranks, slots_per_rank).sum(axis=1)
