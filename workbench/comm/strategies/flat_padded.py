"""All-to-all of equal blocks, as Tutel's: C rows from every source to every expert; what is not filled is padding.

C is what ``balance.capacity`` gives an expert (pairs above it are dropped already), else the pairs of the fullest
(source, expert). So skew becomes padding that travels.
"""

from dataclasses import replace

import numpy as np

from workbench.comm.hop import PADDING, Pairs, exchange, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology
from workbench.workload.capacity import slot_limit


def flat_padded(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...],
    capacity: float | None = None, num_experts: int | None = None,
) -> DispatchPlan:  # fmt: skip
    """One hop of R * S * C rows a rank; C rows for each slot, padding behind the pairs.

    ``capacity`` is a factor of ``num_experts`` experts (the number of slots if left out). Where it is positive, C does
    not depend on the routing and nothing is exchanged before the rows; otherwise ranks agree on C first, which costs
    what counts cost. Padding brings no slot, so nothing is computed for it (Tutel multiplies it too).
    """
    pairs, _ = pairs_of(slots, weights)
    ranks, slot_count = topology.num_ranks, topology.num_ranks * slots_per_rank
    block = pairs.rank * slot_count + pairs.slot
    filled = np.bincount(block, minlength=ranks * slot_count)
    fullest, limit = int(filled.max(initial=0)), -1
    if capacity is not None and capacity > 0:
        rule = {"num_experts": num_experts or slot_count, "top_k": slots.shape[2], "capacity_factor": capacity}
        limit = slot_limit(num_tokens=max(tokens_R), **rule)
    rows_a_slot = max(fullest, limit)  # a part of a batch may have more at one expert than its share of the limit
    order = np.argsort(block, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size) - (np.cumsum(filled) - filled)[block[order]]
    sent = block * rows_a_slot + place
    rows = np.full(ranks * slot_count * rows_a_slot, PADDING, np.int64)
    rows[sent] = pairs.row
    link = np.repeat(np.arange(ranks * ranks), slots_per_rank * rows_a_slot)
    hop, landed = exchange(link, rows, name="all_to_all", num_ranks=ranks)
    hop = replace(hop, announced=fullest <= limit)
    arrived = Pairs(pairs.slot // slots_per_rank, landed[sent], pairs.slot, pairs.weight)
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    return DispatchPlan("flat_padded", topology, tokens_R, slots_per_rank, (hop,), arrived, carried)
