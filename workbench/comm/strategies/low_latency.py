"""One message for every (token, expert), as DeepEP's low-latency mode writes them into buffers of fixed size.

One-sided writes need no word beforehand; over a two-sided transport the flags that count them come first.
"""

import numpy as np

from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.flat import straight
from workbench.comm.topology import Topology
from workbench.spec.errors import Unsupported

QUEUE_DEPTH = 1024
MOST_TOKENS = QUEUE_DEPTH // 2 - 1
"""DeepEP asserts 2 * (tokens + 1) <= the depth of a queue pair, 1024 unless NVSHMEM_QP_DEPTH says otherwise."""


def low_latency(
    slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, topology: Topology, tokens_R: tuple[int, ...],
    tokens_a_call: int | None = None,
) -> DispatchPlan:  # fmt: skip
    """Raises Unsupported for more tokens than the static buffers of a rank hold.

    ``tokens_a_call``: the tokens that a rank may have, where ``tokens_R`` are fewer of them.
    """
    most = max(tokens_R) if tokens_a_call is None else tokens_a_call
    if most > MOST_TOKENS:
        raise Unsupported(
            f"dispatch.strategy: low_latency has static buffers for {MOST_TOKENS} tokens a rank"
            f" (2 * (tokens + 1) <= {QUEUE_DEPTH} messages of a queue), and workload.tokens_per_rank asks for {most}"
            " at once; take node_dedup or flat for more"
        )
    routed = {"slots_per_rank": slots_per_rank, "topology": topology, "tokens_R": tokens_R}
    return straight("low_latency", slots, weights, hop="low_latency", carrier="per_row", **routed)
