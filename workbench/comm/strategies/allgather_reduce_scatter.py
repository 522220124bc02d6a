"""Every rank gets every token and keeps what its experts take; sums are scattered back. Bytes do not depend on routing.

Attractive where ranks are few against top-k: (R - 1) rows a token, and no counts to exchange. Between nodes a token
goes to one rank of each, which hands it on inside; back, sums are made inside the node first.
"""

import numpy as np

from workbench.comm.hop import Hop, Pairs, before, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def allgather_reduce_scatter(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """All tokens along the rails of the nodes, then to all ranks of a node; each row carries its token's routing."""
    pairs, column = pairs_of(slots, weights)
    owner, held_R = pairs.slot // slots_per_rank, np.asarray(tokens_R, np.int64)
    starts_R = np.cumsum(held_R) - held_R
    carried = Carried(starts_R[pairs.rank] + pairs.row, column, pairs.slot, pairs.weight, width=slots.shape[2])
    hops, at = [], pairs
    for name, reach_RR in _reaches(topology):
        hop = _gather(name, held_R, reach_RR)
        peer = owner if name == "scale_up" else topology.rail_peer(at.rank, owner // topology.ranks_per_node)
        block_start_RR = before(hop.send_counts.T).T
        at = Pairs(peer, block_start_RR[at.rank, peer] + at.row, at.slot, at.weight)
        held_R = hop.send_counts.sum(axis=0)
        hops.append(hop)
    return DispatchPlan("allgather_reduce_scatter", topology, tokens_R, slots_per_rank, tuple(hops), at, carried)


def _reaches(topology: Topology) -> list[tuple[str, np.ndarray]]:
    """Hops by name, and whom each rank's tokens go to in them, bool [R, R]; itself always among them."""
    rank, node = np.arange(topology.num_ranks), topology.node_of
    rails = np.zeros((rank.size, rank.size), bool)
    for target in range(topology.num_nodes):
        rails[rank, topology.rail_peer(rank, np.full(rank.size, target))] = True
    across = [("scale_out", rails)] if topology.num_nodes > 1 else []
    inside = [("scale_up", node[:, None] == node[None, :])] if topology.ranks_per_node > 1 or not across else []
    return across + inside


def _gather(name: str, held_R: np.ndarray, reach_RR: np.ndarray) -> Hop:
    send_rows = tuple(np.tile(np.arange(held), reach.sum()) for held, reach in zip(held_R, reach_RR, strict=True))
    counts = reach_RR * held_R[:, None]
    return Hop(name, send_rows, counts, carrier="all_gather", announced=len(set(held_R.tolist())) == 1)
