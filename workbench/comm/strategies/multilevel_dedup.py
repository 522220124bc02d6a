"""One copy of a token per group at every level of the network: groups of nodes, nodes, ranks.

The idea is HierMoE's: what crosses a level is one row per (token, group of that level), and copies are made below it.
Combine reduces from the innermost level outwards.
"""

from itertools import pairwise

import numpy as np

from workbench.comm.hop import forward, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology
from workbench.spec.errors import Unsupported


def multilevel_dedup(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...],
    levels: tuple[int, ...] | None = None,
) -> DispatchPlan:  # fmt: skip
    """``levels``: ranks a group, from the outermost; left out, groups of nodes (if there are any) and nodes.

    With nodes as the only level it is ``node_dedup``. Raises Unsupported for levels that do not nest.
    """
    levels = default_levels(topology) if levels is None else levels
    for outer, inner in pairwise(levels):
        if outer % inner:
            raise Unsupported(f"dispatch.levels: groups of {inner} ranks do not fill up groups of {outer}")
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return deduplicated("multilevel_dedup", slots, weights, levels=levels, **routed)


def default_levels(topology: Topology) -> tuple[int, ...]:
    """Nodes in as many groups as a group has nodes, as near as they divide: 16 nodes of 8 give (32, 8)."""
    nodes = topology.num_nodes
    group = max((size for size in range(1, nodes) if nodes % size == 0 and size * size <= nodes), default=1)
    own = topology.ranks_per_node
    return (group * own, own) if group > 1 else (own,)


def deduplicated(
    strategy: str, slots: np.ndarray, weights: np.ndarray, *, levels: tuple[int, ...], slots_per_rank: int,
    topology: Topology, tokens_R: tuple[int, ...],
) -> DispatchPlan:  # fmt: skip
    """A hop a level to the rank at the same place of the owner's group, and one to the owner; copies are shared."""
    pairs, column = pairs_of(slots, weights)
    owner, ranks = pairs.slot // slots_per_rank, topology.num_ranks
    carried, hops, at = None, [], pairs
    for size in (*levels, 1):
        groups = Topology(ranks, size)
        peer = owner if size == 1 else groups.rail_peer(at.rank, owner // size)
        name = {1: "scale_up", topology.ranks_per_node: "scale_out"}.get(size, f"groups_of_{size}")
        hop, at, sent = forward(at, peer, name=name, num_ranks=ranks, share=True)
        hops.append(hop)
        carried = carried or Carried(sent, column, pairs.slot, pairs.weight, width=slots.shape[2])
    return DispatchPlan(strategy, topology, tokens_R, slots_per_rank, tuple(hops), at, carried)
