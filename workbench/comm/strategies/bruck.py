"""Bruck's all-to-all: ceil(log2 R) rounds, rows wait at ranks in between; few messages, more bytes.

Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems" (1997): in
round i every row whose remaining distance to its rank has bit i set moves on by 2^i.
"""

import numpy as np

from workbench.comm.hop import forward, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def bruck(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """One hop a round, a row per (token, expert) pair; rows whose bit is not set stay where they are."""
    pairs, _ = pairs_of(slots, weights)
    ranks, hops, sent = topology.num_ranks, [], None
    distance = (pairs.slot // slots_per_rank - pairs.rank) % ranks
    for bit in range(max(1, (ranks - 1).bit_length())):
        onward = (pairs.rank + (distance & (1 << bit))) % ranks
        hop, pairs, moved = forward(
            pairs, onward, name=f"round_{bit}", num_ranks=ranks, share=False, carrier="point_to_point"
        )
        hops.append(hop)
        sent = moved if sent is None else sent
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    return DispatchPlan("bruck", topology, tokens_R, slots_per_rank, tuple(hops), pairs, carried)
