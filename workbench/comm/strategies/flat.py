"""Ragged all-to-all: one row per (token, expert) pair, no deduplication."""

import numpy as np

from workbench.comm.plan import Carried, DispatchPlan, forward, pairs_of
from workbench.comm.topology import Topology


def flat(slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology) -> DispatchPlan:
    """One hop; rows arrive grouped by source and, within it, by slot, each with its slot and weight."""
    pairs, _ = pairs_of(slots, weights)
    destination = pairs.slot // slots_per_rank
    hop, landed, sent = forward(pairs, destination, name="all_to_all", num_ranks=topology.num_ranks, share=False)
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    return DispatchPlan("flat", topology, slots.shape[1], slots_per_rank, (hop,), landed, carried)
