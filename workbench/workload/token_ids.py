"""Ids of tokens, for routers that look at nothing else: drawn from a vocabulary whose popularity is the skew's.

A token has its id in every layer. T tokens of one rank, V ids.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.workload import Skew
from workbench.workload.counter import TOKEN_IDS, uniform
from workbench.workload.skew import Crowd, log_popularity


def token_ids(skew: Skew, crowd: Crowd, *, vocabulary: int, rank: int, rows: int, first: int) -> np.ndarray:
    """int64 [rows] of the first tokens of a rank; ``first`` tokens of the group stand before it.

    ``balanced`` counts through the vocabulary, rank after rank; what the hash makes of it is even only on average.
    Raises Unsupported for skews that speak of experts, or that have no sampler.
    """
    if skew.kind == "hot_rank":
        raise Unsupported("workload.skew: hot_rank speaks of experts, but router hash looks at token ids; use zipf")
    if skew.kind == "balanced":
        return (first + np.arange(rows)) % vocabulary
    words = replace(crowd, num_experts=vocabulary, top_k=1, layer=0)
    draws = uniform(rows, seed=crowd.seed, purpose=TOKEN_IDS, place=(rank, crowd.step))
    return np.minimum(np.searchsorted(_distribution(skew, words), draws, side="right"), vocabulary - 1)


@lru_cache(maxsize=8)
def _distribution(skew: Skew, words: Crowd) -> np.ndarray:
    total = np.cumsum(np.exp(log_popularity(skew, words).astype(np.float64)))
    return total / total[-1]
