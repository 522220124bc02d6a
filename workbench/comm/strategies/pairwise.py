"""The rows of ``flat`` in R - 1 rounds, in each of which every rank has one peer: no incast, but skew adds up.

``ring``: in round s rank r sends to r + s. ``xor``: it exchanges with r xor s, which needs a power of two.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from workbench.comm.hop import Round
from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.flat import straight
from workbench.comm.topology import Topology
from workbench.spec.errors import Unsupported

Pairing = Literal["ring", "xor"]


def pairwise(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...],
    pairing: Pairing = "ring",
) -> DispatchPlan:  # fmt: skip
    """Raises Unsupported for xor with a number of ranks that is no power of two."""
    ranks = topology.num_ranks
    if pairing == "xor" and ranks & (ranks - 1):
        raise Unsupported(f"dispatch.pairing: xor needs a power of two, and there are {ranks} ranks; take ring")
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    plan = straight("pairwise", slots, weights, hop="pairwise", carrier="point_to_point", **routed)
    (hop,), rank = plan.hops, np.arange(ranks)
    peers = [rank ^ step if pairing == "xor" else (rank + step) % ranks for step in range(1, ranks)]
    rounds = tuple(Round(peer, hop.send_counts[rank, peer]) for peer in peers)
    return replace(plan, hops=(replace(hop, rounds=rounds),))
