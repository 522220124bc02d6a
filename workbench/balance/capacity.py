"""What a capacity drops, and the least that drops no more than wanted. R source ranks, E experts, K top-k.

``balance.capacity`` has Tutel's meaning: an expert takes K * floor(|f| * ceil(T / E)) of one source rank's T tokens, at
least one and at most T; 0 drops nothing (``kernels.routing.slot_limit``). Pairs are counted here before the drop, so
one routing answers for every factor. It holds for capacity behind a router, not for those that choose by one
(switch, batch_prioritized, expert_choice).
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from workbench.workload.capacity import slot_limit
from workbench.workload.routed import RoutedTraffic

_DIGITS = 10**9


@dataclass(frozen=True)
class Drops:
    """Pairs dropped at one factor: ``dropped_RE`` int64 [R, E] by source rank and expert; ``share`` of all pairs;
    ``padding`` empty places over all places of a padded exchange, where each expert has its limit from each rank."""

    capacity_factor: float
    dropped_RE: np.ndarray
    share: float
    padding: float

    @property
    def by_rank(self) -> np.ndarray:
        """int64 [R], by the rank that holds the token."""
        return self.dropped_RE.sum(axis=1)

    @property
    def by_expert(self) -> np.ndarray:
        """int64 [E]"""
        return self.dropped_RE.sum(axis=0)


def source_counts(traffic: RoutedTraffic, num_experts: int) -> np.ndarray:
    """(Token, expert) pairs by source rank and expert, int64 [R, E]."""
    counts = [np.bincount(ids[ids >= 0], minlength=num_experts) for ids in traffic.ids]
    return np.array(counts, np.int64).reshape(-1, num_experts)


def drops(counts_RE: np.ndarray, tokens_R: np.ndarray, *, top_k: int, capacity_factor: float) -> Drops:
    """What this factor drops of the pairs ``counts_RE`` of ranks with ``tokens_R`` tokens."""
    experts = counts_RE.shape[1]
    limits = [
        slot_limit(num_tokens=int(tokens), num_experts=experts, top_k=top_k, capacity_factor=capacity_factor)
        for tokens in tokens_R
    ]
    kept_R = [tokens if limit is None else limit for limit, tokens in zip(limits, tokens_R, strict=True)]
    limit_R1 = np.array(kept_R, np.int64).reshape(-1, 1)
    dropped_RE = np.maximum(counts_RE - limit_R1, 0)
    pairs, places = int(counts_RE.sum()), int(limit_R1.sum()) * experts
    kept = pairs - int(dropped_RE.sum())
    return Drops(
        capacity_factor,
        dropped_RE,
        share=1 - kept / pairs if pairs else 0.0,
        padding=1 - kept / places if places else 0.0,
    )


def drop_curve(
    counts_RE: np.ndarray, tokens_R: np.ndarray, *, top_k: int, factors: tuple[float, ...]
) -> tuple[Drops, ...]:
    """``drops`` at each of the factors."""
    return tuple(drops(counts_RE, tokens_R, top_k=top_k, capacity_factor=factor) for factor in factors)


def least_capacity(counts_RE: np.ndarray, tokens_R: np.ndarray, *, top_k: int, drop_share: float = 0.0) -> float:
    """The least positive capacity factor that drops at most ``drop_share`` of the pairs.

    The limit moves only at multiples of 1 / ceil(T / E), so those are searched by bisection; the result is such a
    multiple, rounded up in its ninth decimal. Raises ValueError for a share outside of 0 to 1.
    """
    if not 0 <= drop_share <= 1:
        raise ValueError(f"drop_share: {drop_share} is no share; it lies between 0 and 1")
    blocks = sorted({ceil(int(tokens) / counts_RE.shape[1]) for tokens in tokens_R if tokens})
    if not blocks:
        return 1.0
    most = counts_RE.shape[1]  # at this factor the limit is top_k * ceil(T / E) * E, more than there are tokens
    steps = sorted({Fraction(number, block) for block in blocks for number in range(1, most * block + 1)})
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        found = drops(counts_RE, tokens_R, top_k=top_k, capacity_factor=_decimal(steps[middle]))
        low, high = (low, middle) if found.share <= drop_share else (middle + 1, high)
    return _decimal(steps[low])


def _decimal(factor: Fraction) -> float:
    """As a short decimal not below it, for a factor is read as the decimal that is written."""
    return ceil(factor * _DIGITS) / _DIGITS
