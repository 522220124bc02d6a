"""Linear programs that split each expert's tokens over its replicas. E experts, R ranks, S slots a rank.

As DeepSeek's LPLB does for every batch once its counts are known: replicas need not share alike, so a rank with other
hot experts takes less. ``scipy.optimize.linprog`` with HiGHS' dual simplex, which repeats itself bit by bit.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from workbench.balance.expert_map import ExpertMap

_SLACK = 1e-9


def split_tokens(expert_map: ExpertMap, counts: np.ndarray, *, cost_RR: np.ndarray | None = None) -> np.ndarray:
    """Tokens that each slot computes, float64 of the shape of ``counts`` with R * S instead of E.

    ``counts`` [E]: least fullest rank, min z over x >= 0 with sum of x over the slots of expert e = counts[e] and
    sum of x over the slots of rank r <= z. ``counts`` [R, E] are by source rank: the same z, and among all splits
    that reach it one of least cost, where a token from rank s at rank r costs ``cost_RR[s, r]`` (left out: 0 at home
    and 1 elsewhere). Raises ValueError for counts of another number of experts or ranks.
    """
    counts = np.asarray(counts, float)
    ranks, experts = expert_map.num_ranks, expert_map.copies_E.size
    if counts.shape not in ((experts,), (ranks, experts)):
        raise ValueError(f"counts: shape {counts.shape}; the map has {experts} experts on {ranks} ranks")
    totals_E = counts.sum(axis=0) if counts.ndim == 2 else counts
    shares, fullest = _fullest(expert_map, totals_E)
    if counts.ndim == 1:
        return shares
    cost_RR = 1.0 - np.eye(ranks) if cost_RR is None else np.asarray(cost_RR, float)
    return _cheapest(expert_map, counts, fullest=fullest, cost_RR=cost_RR)


def _parts(expert_map: ExpertMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Expert and rank of every slot, and the slots whose expert has others besides."""
    expert_of = expert_map.slots.ravel()
    rank_of = np.arange(expert_of.size) // expert_map.slots_per_rank
    return expert_of, rank_of, np.flatnonzero(expert_map.copies_E[expert_of] > 1)


def _fullest(expert_map: ExpertMap, counts_E: np.ndarray) -> tuple[np.ndarray, float]:
    """The split of total counts, [R * S], and the load of the fullest rank."""
    expert_of, rank_of, free = _parts(expert_map)
    shares = np.where(expert_map.copies_E[expert_of] > 1, 0.0, counts_E[expert_of])
    fixed_R = np.bincount(rank_of, weights=shares, minlength=expert_map.num_ranks)
    if free.size and counts_E.sum() > 0:
        scale = counts_E.sum() / expert_map.num_ranks
        shared, row = np.unique(expert_of[free], return_inverse=True)
        column, ones = np.arange(free.size), np.ones(free.size)
        over = coo_array(
            (np.append(ones, -np.ones(fixed_R.size)),
             (np.append(rank_of[free], np.arange(fixed_R.size)), np.append(column, np.full(fixed_R.size, free.size)))),
            shape=(fixed_R.size, free.size + 1),
        )  # fmt: skip
        whole = coo_array((ones, (row, column)), shape=(shared.size, free.size + 1))
        goal = np.append(np.zeros(free.size), 1.0)
        solved = _solve(goal, over, -fixed_R / scale, whole, counts_E[shared] / scale)
        shares[free] = solved[:-1] * scale
        fixed_R = np.bincount(rank_of, weights=shares, minlength=expert_map.num_ranks)
    return shares, float(fixed_R.max())


def _cheapest(expert_map: ExpertMap, counts_RE: np.ndarray, *, fullest: float, cost_RR: np.ndarray) -> np.ndarray:
    """The split by source [R, R * S] that costs least and fills no rank above ``fullest``."""
    expert_of, rank_of, free = _parts(expert_map)
    ranks, num_slots = expert_map.num_ranks, expert_of.size
    shares = np.where(expert_map.copies_E[expert_of] > 1, 0.0, counts_RE[:, expert_of])
    scale = counts_RE.sum() / ranks
    if not free.size or scale == 0:
        return shares
    fixed_R = np.bincount(rank_of, weights=shares.sum(axis=0), minlength=ranks)
    source, slot = np.divmod(np.arange(ranks * free.size), free.size)
    rank, expert = rank_of[free][slot], expert_of[free][slot]
    pairs, row = np.unique(source * num_slots + expert, return_inverse=True)
    column, ones = np.arange(slot.size), np.ones(slot.size)
    over = coo_array((ones, (rank, column)), shape=(ranks, slot.size))
    whole = coo_array((ones, (row, column)), shape=(pairs.size, slot.size))
    wanted = counts_RE[pairs // num_slots, pairs % num_slots] / scale
    room = (fullest * (1 + _SLACK) - fixed_R) / scale
    shares[source, free[slot]] = _solve(cost_RR[source, rank], over, room, whole, wanted) * scale
    return shares


def _solve(goal: np.ndarray, over: coo_array, room: np.ndarray, whole: coo_array, wanted: np.ndarray) -> np.ndarray:
    solved = linprog(goal, A_ub=over, b_ub=room, A_eq=whole, b_eq=wanted, method="highs-ds")
    if solved.x is None:
        raise ArithmeticError(f"the split of tokens over replicas has no solution: {solved.message}")
    return np.maximum(solved.x, 0.0)
