"""FAST's schedule: even out each node's senders over the fast links, then nodes exchange one to one in stages.

The idea is that of FAST (Lei et al., "FAST: An Efficient Scheduler for All-to-All GPU Communication"): with even
senders the slow network is left with a matrix of nodes, which Birkhoff's theorem takes apart into stages in which every
node sends to one node and hears from one, and whose lengths add up to its fullest row or column.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from workbench.comm.hop import Hop, Pairs, Round, forward, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def balanced_stages(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """Three hops, a row per (token, expert) pair: in the source's node, between nodes in stages, in the owner's."""
    pairs, _ = pairs_of(slots, weights)
    owner, ranks = pairs.slot // slots_per_rank, topology.num_ranks
    node_of = topology.node_of
    sender = _even_senders(pairs, node_of[owner], topology)
    spread, at_sender, sent = forward(pairs, sender, name="balance", num_ranks=ranks, share=False)
    peer = topology.rail_peer(sender, node_of[owner])
    across, at_peer, _ = forward(
        at_sender, peer, name="scale_out", num_ranks=ranks, share=False, carrier="point_to_point"
    )
    across = replace(across, rounds=_rounds(across, topology))
    inside, landed, _ = forward(at_peer, owner, name="scale_up", num_ranks=ranks, share=False)
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    hops = (spread, across, inside)
    return DispatchPlan("balanced_stages", topology, tokens_R, slots_per_rank, hops, landed, carried)


def _even_senders(pairs: Pairs, target: np.ndarray, topology: Topology) -> np.ndarray:
    """Rank of the source node that sends each pair on, int64 [P]: ranks share what goes to a node to within one row.

    A rank keeps what it has up to its share, and hands the rest to ranks below theirs.
    """
    source = topology.node_of[pairs.rank]
    sender = pairs.rank.copy()
    group = source * topology.num_nodes + target
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order])) + 1
    for members in np.split(order, ends) if order.size else []:
        node = source[members[0]]
        if node == target[members[0]]:
            continue
        first = node * topology.ranks_per_node
        size = min(topology.ranks_per_node, topology.num_ranks - first)
        held = np.bincount(pairs.rank[members] - first, minlength=size)
        share = np.full(size, members.size // size)
        share[np.argsort(-held, kind="stable")[: members.size % size]] += 1
        place = np.arange(members.size) - (np.cumsum(held) - held)[pairs.rank[members] - first]
        surplus = members[place >= share[pairs.rank[members] - first]]
        sender[surplus] = first + np.repeat(np.arange(size), np.maximum(share - held, 0))
    return sender


def _rounds(hop: Hop, topology: Topology) -> tuple[Round, ...]:
    """The stages of the node matrix, as rounds of ranks: in a stage of n rows each rank sends up to n."""
    nodes, ranks = topology.num_nodes, np.arange(topology.num_ranks)
    peer = np.stack([topology.rail_peer(ranks, np.full(ranks.size, node)) for node in range(nodes)])
    left = np.stack([hop.send_counts[ranks, peer[node]] for node in range(nodes)])  # [N, R]
    left[topology.node_of, ranks] = 0
    busiest = np.zeros((nodes, nodes), np.int64)
    np.maximum.at(busiest, topology.node_of, left.T)
    rounds = []
    for length, target_N in birkhoff_stages(busiest):
        target = target_N[topology.node_of]
        sending = np.where(target >= 0, np.minimum(left[target, ranks], length), 0)
        left[target, ranks] -= sending
        rounds.append(Round(np.where(sending > 0, peer[target, ranks], -1), sending))
    return tuple(rounds)


def birkhoff_stages(matrix_NN: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Stages (length, target of each node int64 [N], -1 = none) that carry a matrix of rows with a zero diagonal.

    In a stage no node is the target of two; lengths add up to the largest row or column sum. [[0, 2], [1, 0]] gives
    one stage of 2 with targets [1, 0].
    """
    real = matrix_NN.astype(np.int64).copy()
    padded = real + _filler(real)
    nodes = np.arange(len(real))
    stages = []
    while real.any():
        # A matching within what is left exists as all rows and columns have one sum; long ones make fewer stages.
        rows, target = linear_sum_assignment(np.where(padded > 0, padded, -padded.sum() - 1), maximize=True)
        length = int(padded[rows, target].min())
        carried = np.minimum(real[nodes, target], length)
        real[nodes, target] -= carried
        padded[nodes, target] -= length
        if carried.any():
            stages.append((length, np.where(carried > 0, target, -1)))
    return stages


def _filler(matrix_NN: np.ndarray) -> np.ndarray:
    """What to add, so that all rows and columns have the largest sum; filled corner by corner."""
    most = max(matrix_NN.sum(0).max(initial=0), matrix_NN.sum(1).max(initial=0))
    rows, columns = most - matrix_NN.sum(1), most - matrix_NN.sum(0)
    filler = np.zeros_like(matrix_NN)
    row = column = 0
    while row < len(rows) and column < len(columns):
        step = min(rows[row], columns[column])
        filler[row, column] += step
        rows[row] -= step
        columns[column] -= step
        row, column = (row + 1, column) if rows[row] == 0 else (row, column + 1)
    return filler
