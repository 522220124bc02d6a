"""Every rank gets every token and keeps what its experts take; sums are scattered back. Bytes do not depend on routing.

Attractive where ranks are few against top-k: (R - 1) rows a token, and no counts to exchange.
"""

import numpy as np

from workbench.comm.hop import Hop, Pairs, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def allgather_reduce_scatter(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """One hop of all tokens to all ranks; each row carries its token's whole routing."""
    pairs, column = pairs_of(slots, weights)
    ranks, counts = topology.num_ranks, np.asarray(tokens_R, np.int64)
    starts = np.cumsum(counts) - counts
    hop = Hop(
        "all_gather",
        tuple(np.tile(np.arange(tokens), ranks) for tokens in tokens_R),
        np.repeat(counts[:, None], ranks, axis=1),
        carrier="all_gather",
        announced=len(set(tokens_R)) == 1,
    )
    token = starts[pairs.rank] + pairs.row
    landed = Pairs(pairs.slot // slots_per_rank, token, pairs.slot, pairs.weight)
    carried = Carried(token, column, pairs.slot, pairs.weight, width=slots.shape[2], copies=ranks)
    return DispatchPlan("allgather_reduce_scatter", topology, tokens_R, slots_per_rank, (hop,), landed, carried)
