"""Ragged all-to-all: one row per (token, expert) pair, no deduplication."""

import numpy as np

from workbench.comm.hop import Carrier, forward, pairs_of
from workbench.comm.plan import Carried, DispatchPlan
from workbench.comm.topology import Topology


def flat(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """One hop; rows arrive grouped by source and, within it, by slot, each with its slot and weight."""
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return straight("flat", slots, weights, hop="all_to_all", carrier="all_to_all", **routed)


def straight(
    strategy: str, slots: np.ndarray, weights: np.ndarray, *, hop: str, carrier: Carrier, slots_per_rank: int,
    topology: Topology, tokens_R: tuple[int, ...],
) -> DispatchPlan:  # fmt: skip
    """One hop from every token to every one of its slots, a row for each, however it is carried."""
    pairs, _ = pairs_of(slots, weights)
    owner, ranks = pairs.slot // slots_per_rank, topology.num_ranks
    only, landed, sent = forward(pairs, owner, name=hop, num_ranks=ranks, share=False, carrier=carrier)
    carried = Carried(sent, np.zeros_like(sent), pairs.slot, pairs.weight, width=1)
    return DispatchPlan(strategy, topology, tokens_R, slots_per_rank, (only,), landed, carried)
