"""One copy of a token per group at every level of the network: groups of nodes, nodes, ranks.

The idea is HierMoE's: what crosses a level is one row per (token, group of that level), and copies are made below it.
Combine reduces from the innermost level outwards.
"""

import numpy as np

from workbench.comm.hop import forward, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def multilevel_dedup(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """A hop for each of ``topology.levels`` and one to the ranks; where nodes are the only level, as ``node_dedup``."""
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return deduplicated("multilevel_dedup", slots, weights, levels=topology.levels, **routed)


def deduplicated(
    strategy: str, slots: np.ndarray, weights: np.ndarray, *, levels: tuple[int, ...], slots_per_rank: int,
    topology: Topology, tokens_R: tuple[int, ...],
) -> DispatchPlan:  # fmt: skip
    """A hop a level to the rank at the same place of the owner's group, and one to the owner; copies are shared.

    A level whose group holds all ranks is passed over, as no row would move.
    """
    pairs, column = pairs_of(slots, weights)
    owner, ranks = pairs.slot // slots_per_rank, topology.num_ranks
    carried, hops, at = None, [], pairs
    for size in (*(size for size in levels if 1 < size < ranks), 1):
        peer = owner if size == 1 else Topology(ranks, size).rail_peer(at.rank, owner // size)
        hop, at, sent = forward(at, peer, name=_hop_name(size, topology), num_ranks=ranks, share=True)
        hops.append(hop)
        carried = carried or Carried(sent, column, pairs.slot, pairs.weight, width=slots.shape[2])
    return DispatchPlan(strategy, topology, tokens_R, slots_per_rank, tuple(hops), at, carried)


def _hop_name(size: int, topology: Topology) -> str:
    if size == topology.ranks_per_node:
        return "scale_out"
    return "scale_up" if size == 1 else f"groups_of_{size}"
