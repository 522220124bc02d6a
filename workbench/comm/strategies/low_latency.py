"""One message for every (token, expert), as DeepEP's low-latency mode writes them into buffers of fixed size.

One-sided writes need no word beforehand; over a two-sided transport the flags that count them come first.
"""

import numpy as np

from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.flat import straight
from workbench.comm.topology import Topology
from workbench.spec.errors import Unsupported

MOST_TOKENS = 1024
"""Every source has a place for each of its tokens at every expert; DeepEP allows up to a queue pair's depth."""


def low_latency(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """Raises Unsupported for more tokens a rank than the static buffers hold."""
    if max(tokens_R) > MOST_TOKENS:
        raise Unsupported(
            f"dispatch.strategy: low_latency has static buffers for {MOST_TOKENS} tokens a rank, and"
            f" workload.tokens_per_rank is {max(tokens_R)}; take node_dedup or flat for more"
        )
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return straight("low_latency", slots, weights, hop="low_latency", carrier="per_row", **routed)
