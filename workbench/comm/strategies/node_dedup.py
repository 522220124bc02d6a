"""One copy per (token, node) to the rank at the same rail, then fan-out inside the node.

The idea is that of DeepEP's normal mode: the slow network carries a token once per node, the fast one copies it.
Combine reduces inside the node first, so the network carries one row per (token, node) back.
"""

import numpy as np

from workbench.comm.plan import Carried, DispatchPlan, forward, pairs_of
from workbench.comm.topology import Topology


def node_dedup(slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology) -> DispatchPlan:
    """Two hops; a row carries the slots and weights of its token on that node, -1 in the other columns."""
    pairs, column = pairs_of(slots, weights)
    owner = pairs.slot // slots_per_rank
    peer = topology.rail_peer(pairs.rank, owner // topology.ranks_per_node)
    ranks = topology.num_ranks
    across, at_peer, sent = forward(pairs, peer, name="scale_out", num_ranks=ranks, share=True)
    inside, landed, _ = forward(at_peer, owner, name="scale_up", num_ranks=ranks, share=True)
    carried = Carried(sent, column, pairs.slot, pairs.weight, width=slots.shape[2])
    return DispatchPlan("node_dedup", topology, slots.shape[1], slots_per_rank, (across, inside), landed, carried)
