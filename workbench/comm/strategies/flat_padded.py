"""All-to-all of equal blocks: every source has as many rows at every expert as the fullest pair of them, as in Tutel.

Skew becomes padding that travels. A capacity factor limits it, as the router has then dropped what is above it.
"""

import numpy as np

from workbench.comm.hop import PADDING, Pairs, exchange, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def flat_padded(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """One hop of R * S * C rows a rank; C rows for each slot, padding behind the pairs.

    Ranks have to agree on C first, which costs what counts cost. Padding brings no slot, so nothing is computed for it
    (Tutel multiplies it too).
    """
    pairs, _ = pairs_of(slots, weights)
    ranks, slot_count = topology.num_ranks, topology.num_ranks * slots_per_rank
    block = pairs.rank * slot_count + pairs.slot
    filled = np.bincount(block, minlength=ranks * slot_count)
    capacity = int(filled.max(initial=0))
    order = np.argsort(block, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size) - (np.cumsum(filled) - filled)[block[order]]
    sent = block * capacity + place
    rows = np.full(ranks * slot_count * capacity, PADDING, np.int64)
    rows[sent] = pairs.row
    link = np.repeat(np.arange(ranks * ranks), slots_per_rank * capacity)
    hop, landed = exchange(link, rows, name="all_to_all", num_ranks=ranks)
    arrived = Pairs(pairs.slot // slots_per_rank, landed[sent], pairs.slot, pairs.weight)
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    return DispatchPlan("flat_padded", topology, tokens_R, slots_per_rank, (hop,), arrived, carried)
