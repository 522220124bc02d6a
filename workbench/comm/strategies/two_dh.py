"""Two-dimensional hierarchical all-to-all: inside the node to the rail of the owner, then along that rail.

The idea is Tutel's 2DH: messages between nodes are fewer and larger, at two more passes over memory. Nothing is
deduplicated, so bytes are those of ``flat``, and what changes nodes also travels inside one.
"""

import numpy as np

from workbench.comm.hop import forward, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def two_dh(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """Two hops, a row per (token, expert) pair."""
    pairs, _ = pairs_of(slots, weights)
    owner, ranks = pairs.slot // slots_per_rank, topology.num_ranks
    rail = topology.rail_peer(owner, topology.node_of[pairs.rank])
    inside, at_rail, sent = forward(pairs, rail, name="scale_up", num_ranks=ranks, share=False)
    across, landed, _ = forward(at_rail, owner, name="scale_out", num_ranks=ranks, share=False)
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    return DispatchPlan("two_dh", topology, tokens_R, slots_per_rank, (inside, across), landed, carried)
