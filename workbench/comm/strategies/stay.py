"""No exchange: every token stays on its rank."""

import numpy as np

from workbench.comm.hop import Pairs, pairs_of
from workbench.comm.plan import DispatchPlan
from workbench.comm.topology import Topology


def stay(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """No hop. With several ranks an expert elsewhere is replaced by the one in the same local slot at home.

    That keeps the number of pairs a rank computes, as an ablation of the all-to-all should; with one rank nothing
    is replaced.
    """
    pairs, _ = pairs_of(slots, weights)
    at_home = pairs.rank * slots_per_rank + pairs.slot % slots_per_rank
    pairs = Pairs(pairs.rank, pairs.row, at_home, pairs.weight)
    return DispatchPlan("none", topology, tokens_R, slots_per_rank, (), pairs)
