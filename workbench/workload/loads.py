"""Loads counted: by expert, by rank, by link and by node port. Figures and definitions are ``spec.load_metrics``.

Expert load is not link load: count what reaches experts, ranks and links apart. R ranks, E experts, N nodes.
"""

import numpy as np

from workbench.spec.load_metrics import DEFINITIONS, LEVELS, Definition, LoadStats, load_stats

__all__ = ["DEFINITIONS", "LEVELS", "Definition", "LoadStats", "link_counts", "load_levels", "load_stats",
           "rank_counts", "slot_counts"]  # fmt: skip


def slot_counts(slots: np.ndarray, num_slots: int) -> np.ndarray:
    """Tokens per slot (or expert), int64 [num_slots]; -1 marks a dropped pair and is left out."""
    flat = np.asarray(slots).ravel()
    return np.bincount(flat[flat >= 0], minlength=num_slots)


def rank_counts(slots: np.ndarray, *, num_ranks: int, slots_per_rank: int) -> np.ndarray:
    """(Token, expert) pairs per rank, int64 [R], from global slot ids rank * S + s."""
    return slot_counts(slots, num_ranks * slots_per_rank).reshape(num_ranks, slots_per_rank).sum(axis=1)


def link_counts(bytes_RR: np.ndarray, *, node_of: np.ndarray) -> dict[str, np.ndarray]:
    """Bytes by link, from those that row ranks send to column ranks; what stays on a rank is left out.

    ``rank_out`` [R] is what each rank sends. ``pair_scale_up`` and ``pair_scale_out`` hold every ordered pair of ranks
    inside of a node and of two nodes, idle ones too; ``node_out`` and ``node_in`` [N] what passes each node's port. A
    level without any link is empty.
    """
    bytes_RR, node_of = np.asarray(bytes_RR), np.asarray(node_of)
    same_node = node_of[:, None] == node_of
    between = np.where(same_node, 0, bytes_RR)
    num_nodes = int(node_of.max()) + 1 if node_of.size else 0
    ports = (np.bincount(node_of, weights=between.sum(axis=axis), minlength=num_nodes) for axis in (1, 0))
    out, into = ports if num_nodes > 1 else (np.zeros(0), np.zeros(0))
    leaving = np.where(np.eye(node_of.size, dtype=bool), 0, bytes_RR)
    return {
        "rank_out": leaving.sum(axis=1),
        "pair_scale_up": bytes_RR[same_node & ~np.eye(node_of.size, dtype=bool)],
        "pair_scale_out": bytes_RR[~same_node],
        "node_out": out,
        "node_in": into,
    }


def load_levels(
    *, experts: np.ndarray, ranks: np.ndarray, sources: np.ndarray, bytes_RR: np.ndarray, node_of: np.ndarray
) -> dict[str, LoadStats]:
    """Figures of every level of ``LEVELS``: pairs by expert [E] and rank [R], tokens by source [R], bytes by link."""
    counts = {"expert": experts, "rank": ranks, "source": sources} | link_counts(bytes_RR, node_of=node_of)
    return {level: load_stats(counts[level]) for level in LEVELS}
