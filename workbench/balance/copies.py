"""How many replicas each expert gets, chosen so that they can be packed. E experts, R ranks, C candidates.

Loads are in units of a rank's mean here. ``packing.replicate`` makes the largest copy as small as it can be; with few
spare slots that leaves many copies of some 0.6, and a rank with two of them is 20% too full while one with one of them
finds too little else. Giving a copy less to one expert and one more to another mends that.
"""

import numpy as np

_NEAR = 1.01
"""A fullest rank this near to the mean is left alone: the counts of the next step differ by as much."""
_ROUNDS = 12
_MAX_RANKS = 512
"""Of larger groups the search takes minutes; they keep what ``replicate`` gives."""
_GIVERS = _TAKERS = 12
_FINE = 0.05
"""Copies lighter than this fill gaps: they are not packed one by one here."""
_POWER = 6  # of the loads above the mean: nearly the maximum, yet it sees when one full rank less is left


def packable_copies(loads: np.ndarray, copies: np.ndarray, num_ranks: int) -> np.ndarray:
    """``copies`` int64 [E] after moves of one copy each from one expert to another, at most ``_ROUNDS`` of them.

    Each is the best of up to 144: from an expert that bears the loss best to one whose copies are heaviest, judged by
    packing the heavy copies alone (of equal moves the one of the lower experts). Ends when none helps.
    """
    alone = copies.sum() <= num_ranks  # a slot a rank: nothing is packed
    if loads.sum() == 0 or copies.max() == 1 or alone or num_ranks > _MAX_RANKS:
        return copies
    scaled = loads * (num_ranks / loads.sum())
    best = _spill(scaled, copies[None], num_ranks)
    for _ in range(_ROUNDS):
        if best[0] <= 0:
            break
        candidates_CE = _moves(scaled, copies, num_ranks)
        if not candidates_CE.size:
            break
        spill_C = _spill(scaled, candidates_CE, num_ranks)
        chosen = int(spill_C.argmin())
        if spill_C[chosen] >= best[0] * (1 - 1e-9):
            break
        copies, best = candidates_CE[chosen], spill_C[chosen : chosen + 1]
    return copies


def _moves(loads: np.ndarray, copies: np.ndarray, num_ranks: int) -> np.ndarray:
    """Copies after each move, int64 [C, E]; an expert keeps one copy and gets no more than there are ranks."""
    givers, takers = np.flatnonzero(copies > 1), np.flatnonzero((copies < num_ranks) & (loads / copies > _FINE))
    after = loads[givers] / (copies[givers] - 1)
    givers = np.sort(givers[np.argsort(after, kind="stable")][:_GIVERS])
    heaviest = np.argsort(-(loads / copies)[takers], kind="stable")
    takers = np.sort(takers[heaviest][:_TAKERS])
    giver, taker = (grid.ravel() for grid in np.meshgrid(givers, takers, indexing="ij"))
    giver, taker = giver[giver != taker], taker[giver != taker]
    moved_CE, row = np.repeat(copies[None], giver.size, axis=0), np.arange(giver.size)
    moved_CE[row, giver] -= 1
    moved_CE[row, taker] += 1
    return moved_CE


def _spill(loads: np.ndarray, copies_CE: np.ndarray, num_ranks: int) -> np.ndarray:
    """What spills over with the heavy copies packed heaviest first into the lightest rank, float64 [C]: the sum over
    ranks of (load / _NEAR)^6 where that is above 1."""
    heavy = np.flatnonzero(loads > _FINE)
    columns = np.arange(copies_CE[:, heavy].max(initial=0))
    there_CEM = columns < copies_CE[:, heavy, None]
    items_CI = np.where(there_CEM, (loads / copies_CE)[:, heavy, None], 0.0).reshape(len(copies_CE), -1)
    count = int(there_CEM.sum(axis=(1, 2)).max(initial=0))
    items_CI = -np.sort(-items_CI, axis=1)[:, :count]
    bins_CR, row = np.zeros((len(copies_CE), num_ranks)), np.arange(len(copies_CE))
    for item_C in np.ascontiguousarray(items_CI.T):
        bins_CR[row, bins_CR.argmin(axis=1)] += item_C
    over = bins_CR / _NEAR
    return np.where(over > 1, over**_POWER, 0.0).sum(axis=1)
