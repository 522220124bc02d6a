"""One copy per (token, node) to the rank at the same rail, then fan-out inside the node.

The idea is that of DeepEP's normal mode: the slow network carries a token once per node, the fast one copies it.
Combine reduces inside the node first, so the network carries one row per (token, node) back.
"""

import numpy as np

from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.multilevel_dedup import deduplicated
from workbench.comm.topology import Topology


def node_dedup(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """Two hops; a row carries the slots and weights of its token on that node, -1 in the other columns."""
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return deduplicated("node_dedup", slots, weights, levels=(topology.ranks_per_node,), **routed)
