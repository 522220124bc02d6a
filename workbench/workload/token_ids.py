"""Ids of tokens, for routers that look at nothing else: drawn from a vocabulary whose popularity is the skew's.

A token has its id in every layer. T tokens of one rank, V ids.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.workload import Skew, Topics
from workbench.workload.counter import TOKEN_IDS, uniform
from workbench.workload.logits import Batch, copied_rows, token_topics, topic_popularity
from workbench.workload.skew import MOVING, OF_EXPERTS, Crowd, log_popularity


def token_ids(skew: Skew, crowd: Crowd, batch: Batch, *, vocabulary: int) -> np.ndarray:
    """int64 [rows] of the first tokens of a rank.

    ``balanced`` counts through the vocabulary, rank after rank; what the hash makes of it is even only on average. Of
    ``topics`` neighbours have the same id with the chance ``correlation``. Raises Unsupported for skews that speak of
    experts.
    """
    if skew.kind in OF_EXPERTS:
        raise Unsupported(
            f"workload.skew: {skew.kind} speaks of experts, but router hash looks at token ids; use zipf or topics"
        )
    if skew.kind == "balanced":
        return (batch.start + np.arange(batch.rows)) % vocabulary
    words = replace(crowd, num_experts=vocabulary, top_k=1, layer=0, step=crowd.step if skew.kind in MOVING else 0)
    place = (batch.rank, crowd.step)
    draws = uniform(batch.rows, seed=crowd.seed, purpose=TOKEN_IDS, place=place)
    if isinstance(skew, Topics):
        draws = draws[copied_rows(skew, batch.rows, 1, seed=crowd.seed, place=place)[:, 0]]
        topics = token_topics(skew, crowd, rank=batch.rank, rows=batch.rows)
        ids = np.empty(batch.rows, np.int64)
        for topic in np.unique(topics):
            ids[topics == topic] = _find(_distributions(skew, words)[topic], draws[topics == topic])
        return ids
    return _find(_distributions(skew, words)[0], draws)


def _find(cumulative: np.ndarray, draws: np.ndarray) -> np.ndarray:
    return np.minimum(np.searchsorted(cumulative, draws, side="right"), cumulative.size - 1)


@lru_cache(maxsize=8)
def _distributions(skew: Skew, words: Crowd) -> np.ndarray:
    """Cumulative shares of the ids, of every topic: [topics, V]."""
    logs = topic_popularity(skew, words) if isinstance(skew, Topics) else log_popularity(skew, words)[None]
    total = np.cumsum(np.exp(logs.astype(np.float64)), axis=1)
    return total / total[:, -1:]
