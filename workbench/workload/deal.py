"""Balanced routing: experts are dealt, not drawn, and the logits are written so that a router takes the dealt ones."""

from functools import lru_cache

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.router import Router
from workbench.workload.counter import DEAL, TOKENS, permutation, raw_words
from workbench.workload.skew import Crowd

_SPREAD = 4  # blocks of this many turns are shuffled: ranks stay even, tokens do not all meet every rank


def dealt_logits(crowd: Crowd, *, router: Router, rank: int, rows: int, first: int) -> np.ndarray:
    """float32 [rows, E]: dealt experts between 1 and 2, the others below -8.

    ``first`` tokens of the group stand before this rank's. Pair p = (first + t) * k + j of the group takes expert
    order[p mod E], so the loads of all ranks together differ by at most one and min(E, pairs) experts are touched.
    Holds for every router that takes the highest logits, grouped ones included; `random` and `hash` ignore logits and
    are not balanced by this.
    """
    experts, top_k = crowd.num_experts, crowd.top_k
    groups, kept = getattr(router, "num_groups", 1), getattr(router, "topk_group", 1)
    order = _order(crowd, groups, kept)
    pairs = first * top_k + np.arange(rows * top_k)
    words = raw_words(rows * experts, seed=crowd.seed, purpose=TOKENS, place=(rank, crowd.layer, crowd.step))
    noise = ((words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(rows, experts)
    logits = noise - np.float32(9)
    tokens = np.repeat(np.arange(rows), top_k)
    chosen = order[pairs % experts]
    logits[tokens, chosen] = np.float32(1) + noise[tokens, chosen]
    return logits


@lru_cache(maxsize=64)
def _order(crowd: Crowd, groups: int, kept: int) -> np.ndarray:
    """The cyclic order of dealing; any k neighbours lie in at most ``kept`` of the groups."""
    for width in sorted({kept, max(1, kept // 2), 1}, reverse=True):
        order = _order_of_width(crowd, groups, width)
        if kept >= groups or _widest(order, crowd, groups) <= kept:
            return order
    raise Unsupported(
        f"workload.skew: balanced cannot deal top_k {crowd.top_k} of {crowd.num_experts} experts within"
        f" {kept} of {groups} groups evenly; use uniform"
    )


def _order_of_width(crowd: Crowd, groups: int, width: int) -> np.ndarray:
    """Groups taken ``width`` at a time in random order; inside, ranks take turns and short blocks are shuffled."""
    experts = crowd.num_experts
    place = (crowd.layer, crowd.step)
    group_order = permutation(groups, seed=crowd.seed, purpose=DEAL, place=(*place, 0))
    keys = permutation(experts, seed=crowd.seed, purpose=DEAL, place=(*place, 1))
    mix = permutation(experts, seed=crowd.seed, purpose=DEAL, place=(*place, 2))
    group_of = np.arange(experts) * groups // experts
    rank_of = np.arange(experts) * crowd.num_ranks // experts
    parts = []
    for start in range(0, groups, width):
        members = np.flatnonzero(np.isin(group_of, group_order[start : start + width]))
        members = members[np.argsort(keys[members], kind="stable")]
        turn = _occurrence(rank_of[members])
        members = members[np.argsort(turn, kind="stable")]
        block = np.arange(members.size) // (_SPREAD * np.unique(rank_of[members]).size)
        parts.append(members[np.lexsort((mix[members], block))])
    return np.concatenate(parts)


def _occurrence(values: np.ndarray) -> np.ndarray:
    """How many equal values stand before each one: [5, 7, 5, 5] -> [0, 0, 1, 2]."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered)
    result = np.empty(values.size, np.int64)
    result[order] = np.arange(values.size) - first
    return result


def _widest(order: np.ndarray, crowd: Crowd, groups: int) -> int:
    """Most groups met by the k neighbours of one token (tokens start at multiples of k, cyclic)."""
    group_of = order * groups // crowd.num_experts
    starts = np.arange(crowd.num_experts) * crowd.top_k % crowd.num_experts
    windows = np.sort(group_of[(starts[:, None] + np.arange(crowd.top_k)) % crowd.num_experts], axis=1)
    return int((np.diff(windows, axis=1) != 0).sum(axis=1).max(initial=0)) + 1
