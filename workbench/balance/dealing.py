"""From expert ids to slots: the pairs of an expert are dealt over its replicas, the same on every rank.

R source ranks, T tokens, K top-k, E experts.
"""

import numpy as np

from workbench.balance.expert_map import ExpertMap
from workbench.balance.split import split_tokens


def to_slots(expert_map: ExpertMap, ids: np.ndarray) -> np.ndarray:
    """Global slot ids of expert ids [R, T, K], int32 of the same shape; -1 stays -1.

    With the split ``even`` the pairs of one source rank that chose an expert go over its replicas in turn, starting at
    replica ``rank mod copies``, so that replicas share the load to within one pair a source rank. With ``lp`` the
    counts of this batch decide the shares, to within one pair each, and pairs in the order of source and token go to
    the replica that is furthest behind its share: every source's pairs are spread alike.
    """
    first, copies, table = _replicas(expert_map)
    safe = np.where(ids >= 0, ids, 0)
    slots = first[safe]
    shared = (copies[safe] > 1) & (ids >= 0)
    if shared.any():
        expert = ids[shared].astype(np.int64)
        if expert_map.split == "lp":
            counts_E = np.bincount(ids[ids >= 0], minlength=copies.size)
            slots[shared] = _by_quota(expert, _quotas(expert_map, counts_E), expert_map)
        else:
            source = np.nonzero(shared)[0]
            turn = (_turns(source * copies.size + expert) + source) % copies[expert]
            slots[shared] = table[expert, turn]
    return np.where(ids >= 0, slots, np.int32(-1))


def _replicas(expert_map: ExpertMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First slot [E], number of copies [E], and slots of each copy [E, max copies] (padded with the first)."""
    flat = expert_map.slots.ravel()
    order = np.argsort(flat, kind="stable")
    copies = np.bincount(flat)
    starts = np.cumsum(copies) - copies
    column = np.arange(copies.max())
    table = order[starts[:, None] + np.where(column < copies[:, None], column, 0)].astype(np.int32)
    return table[:, 0], copies, table


def _turns(keys: np.ndarray) -> np.ndarray:
    """How many equal keys stand before each one."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    turns = np.empty(keys.size, np.int64)
    turns[order] = np.arange(keys.size) - np.searchsorted(ordered, ordered)
    return turns


def _quotas(expert_map: ExpertMap, counts_E: np.ndarray) -> np.ndarray:
    """Whole pairs of every slot, int64 [R * S], from the linear program: rounded down, and what an expert then lacks
    goes to its slots with the largest remainders, of equal ones to the lower slot."""
    expert_of = expert_map.slots.ravel()
    shares = np.round(split_tokens(expert_map, counts_E), 6)  # the last bits must not decide who gets a pair
    quotas = np.floor(shares).astype(np.int64)
    lack_E = counts_E - np.bincount(expert_of, weights=quotas, minlength=counts_E.size).astype(np.int64)
    order = np.lexsort((np.arange(shares.size), quotas - shares, expert_of))
    place = np.empty_like(quotas)
    place[order] = _turns(expert_of[order])
    return quotas + (place < lack_E[expert_of])


def _by_quota(expert: np.ndarray, quotas: np.ndarray, expert_map: ExpertMap) -> np.ndarray:
    """Slot of every pair, int32, of experts [pairs] in dealing order; slot p is given ``quotas[p]`` of them, evenly
    spaced: its i-th at (i + 1/2) / quota of the expert's sequence, the lower slot first among equal ones."""
    expert_of = expert_map.slots.ravel()
    dealt = np.repeat(np.arange(quotas.size), quotas)
    dealt = dealt[expert_map.copies_E[expert_of[dealt]] > 1]
    spaced = (_turns(dealt) + 0.5) / quotas[dealt]
    dealt = dealt[np.lexsort((dealt, spaced, expert_of[dealt]))]
    slots = np.empty(expert.size, np.int32)
    slots[np.argsort(expert, kind="stable")] = dealt
    return slots
