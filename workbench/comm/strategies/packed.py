"""Point-to-point messages packed per peer, as pplx-kernels send them: only peers that get something are written to."""

import numpy as np

from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.flat import straight
from workbench.comm.topology import Topology


def packed(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """The rows of ``flat`` in one message a peer, all in flight at once, with none to a peer that gets no row."""
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return straight("packed", slots, weights, hop="packed", carrier="point_to_point", **routed)
