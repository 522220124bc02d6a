"""What a rebalance costs: weights that move when one placement follows another. R ranks, S slots a rank, M moves.

A rank that held an expert before has it for nothing, wherever its slot. Any other fetches it whole from a rank that
held it, over the nearest link there is. Weights move outside of a step here (nothing is hidden behind it).
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from scipy.optimize import linear_sum_assignment

from workbench.balance.expert_map import ExpertMap
from workbench.spec.cluster import Hardware


@dataclass(frozen=True)
class Movement:
    """From one map to the next. ``slots`` int64 [M] (rank * S + s of ``after``), ``sources`` and ``experts`` say what
    is fetched and from whom; ``changed`` counts the slots whose expert is another one, ``bytes_RR`` goes from row ranks
    to column ranks."""

    after: ExpertMap
    slots: np.ndarray
    sources: np.ndarray
    experts: np.ndarray
    changed: int
    bytes_RR: np.ndarray
    ranks_per_node: int

    @property
    def destinations(self) -> np.ndarray:
        """Rank of every slot that fetches, int64 [M]."""
        return self.slots // self.after.slots_per_rank

    def rank_bytes(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Bytes that each rank sends and receives, int64 [R] twice, by ``scale_up`` (in a node) and ``scale_out``."""
        same = _same_node(len(self.bytes_RR), self.ranks_per_node)
        parts = {"scale_up": np.where(same, self.bytes_RR, 0), "scale_out": np.where(same, 0, self.bytes_RR)}
        return {link: (part.sum(axis=1), part.sum(axis=0)) for link, part in parts.items()}


def move(before: ExpertMap, after: ExpertMap, *, expert_bytes: int, ranks_per_node: int) -> Movement:
    """The fetches from ``before`` to ``after`` with experts of ``expert_bytes`` each (scales included).

    An expert comes from a rank of its own node if one held it, of those from the one that has sent least so far, of
    equal ones the lowest; fetching slots take their turn in order. A rank fetches an expert once however many slots
    it fills. Raises ValueError for maps of another number of ranks or experts.
    """
    if before.num_ranks != after.num_ranks or before.copies_E.size != after.copies_E.size:
        raise ValueError(
            f"placement: {before.num_ranks} ranks with {before.copies_E.size} experts cannot become {after.num_ranks}"
            f" ranks with {after.copies_E.size} experts by moving weights"
        )
    ranks = after.num_ranks
    held_RE, has_RE = _held(before), _held(before)
    same = _same_node(ranks, ranks_per_node)
    bytes_RR, fetched = np.zeros((ranks, ranks), np.int64), []
    for slot, expert in enumerate(after.slots.ravel().tolist()):
        rank = slot // after.slots_per_rank
        if has_RE[rank, expert]:
            continue
        has_RE[rank, expert] = True
        holders = np.flatnonzero(held_RE[:, expert])
        near = holders[same[rank, holders]]
        holders = near if near.size else holders
        source = int(holders[bytes_RR[holders].sum(axis=1).argmin()])
        bytes_RR[source, rank] += expert_bytes
        fetched.append((slot, source, expert))
    columns = np.array(fetched, np.int64).reshape(-1, 3).T
    changed = int((before.slots != after.slots).sum()) if before.slots.shape == after.slots.shape else after.slots.size
    return Movement(after, *columns, changed, bytes_RR, ranks_per_node)


def settled(before: ExpertMap, after: ExpertMap, *, ranks_per_node: int) -> ExpertMap:
    """``after`` with as few experts to fetch as renaming allows: the same sets of experts, dealt anew to the ranks of
    each node (which are alike in all else) by a linear assignment, and experts that stay in their old slots.

    Loads of ranks are only permuted inside of nodes.
    """
    held_RE = _held(before)
    slots = after.slots.copy()
    for first in range(0, after.num_ranks, ranks_per_node):
        node = np.arange(first, min(first + ranks_per_node, after.num_ranks))
        kept = np.array([[held_RE[rank, np.unique(after.slots[row])].sum() for row in node] for rank in node])
        rows, columns = linear_sum_assignment(kept, maximize=True)
        slots[node[rows]] = after.slots[node[columns]]
    if before.slots.shape == slots.shape:
        slots = np.stack([_in_place(old, new) for old, new in zip(before.slots, slots, strict=True)])
    return replace(after, slots=slots)


def movement_us(movement: Movement, hardware: Hardware, *, expert_tp: int = 1) -> float:
    """Microseconds until the last weight is there; 0 where nothing moves between ranks.

    Each rank sends and receives at its full rate at once, both classes of link too, so the time is the largest of
    bytes over rate over ranks, directions and classes, plus one latency of that class. On a mesh each pair of ranks
    has its own link; what ranks of a node share (``node_gb_per_s``) carries the bytes of all of them. ``expert_tp``:
    GPUs that share a rank's experts and move their parts side by side.
    """
    up, out, moved = hardware.scale_up, hardware.scale_out, movement.rank_bytes()
    narrowed = max(1.0, out.oversubscription)
    loads = [(up.latency_us, part / expert_tp, up.gb_per_s) for part in moved["scale_up"]]
    loads += [(out.latency_us, part / expert_tp, out.gb_per_s / narrowed) for part in moved["scale_out"]]
    if out.node_gb_per_s:
        nodes = np.arange(len(movement.bytes_RR)) // movement.ranks_per_node
        of_nodes = [np.bincount(nodes, part) for part in moved["scale_out"]]
        loads += [(out.latency_us, part, out.node_gb_per_s / narrowed) for part in of_nodes]
    if up.topology == "mesh" and up.per_peer_gb_per_s:
        inside = np.where(_same_node(len(movement.bytes_RR), movement.ranks_per_node), movement.bytes_RR, 0)
        loads.append((up.latency_us, inside / expert_tp, up.per_peer_gb_per_s))
    return max(latency_us + _us(part.max(), rate) if part.any() else 0.0 for latency_us, part, rate in loads)


def amortised_steps(cost_us: float, *, before_us: float, after_us: float) -> int | None:
    """Steps of ``after_us`` instead of ``before_us`` until the move has paid for itself; None where it never does."""
    if cost_us <= 0:
        return 0
    saved_us = before_us - after_us
    return ceil(cost_us / saved_us) if saved_us > 0 else None


def _us(num_bytes: float, gb_per_s: float) -> float:
    return num_bytes / gb_per_s / 1e3 if gb_per_s else float("inf")


def _held(expert_map: ExpertMap) -> np.ndarray:
    """bool [R, E]: the rank holds the expert."""
    held_RE = np.zeros((expert_map.num_ranks, expert_map.copies_E.size), bool)
    held_RE[np.arange(expert_map.num_ranks)[:, None], expert_map.slots] = True
    return held_RE


def _same_node(ranks: int, ranks_per_node: int) -> np.ndarray:
    node = np.arange(ranks) // ranks_per_node
    return node[:, None] == node


def _in_place(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The experts ``new`` [S] of a rank: those that it held in their old slots, the others in what is left."""
    result, waiting = np.full_like(new, -1), new.tolist()
    for slot, expert in enumerate(old.tolist()):
        if expert in waiting:
            waiting.remove(expert)
            result[slot] = expert
    result[result < 0] = waiting
    return result
