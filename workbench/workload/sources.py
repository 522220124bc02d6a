"""How many tokens each rank has before dispatch. R ranks of the expert-parallel group."""

import math
from functools import lru_cache

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.spec.workload import EmptyRank, RaggedSources, Sources
from workbench.workload.counter import SOURCES, permutation

_STEEPEST = 4096.0


def source_tokens(cell: Cell) -> np.ndarray:
    """int64 [R], at most ``workload.tokens_per_rank`` each; the same in every layer and step, read-only.

    Raises Unsupported for a rank outside of the group and for a spread that its ranks cannot have.
    """
    workload, tokens = cell.workload, cell.workload.tokens_per_rank
    return spread_tokens(workload.sources, num_ranks=cell.ep, tokens=tokens, seed=workload.seed, told=tokens)


@lru_cache(maxsize=64)
def spread_tokens(sources: Sources, *, num_ranks: int, tokens: int, seed: int, told: int) -> np.ndarray:
    """``source_tokens`` from its parts, of every ``tokens`` tokens ``told`` (at least one of any)."""
    counts = np.full(num_ranks, tokens, np.int64)
    if isinstance(sources, EmptyRank):
        if sources.rank >= num_ranks:
            raise Unsupported(
                f"workload.sources.rank: {sources.rank} is not among the {num_ranks} ranks of parallel.ep"
            )
        counts[sources.rank] = 0
    elif isinstance(sources, RaggedSources):
        counts = _ragged(sources.cv, num_ranks, tokens)[permutation(num_ranks, seed=seed, purpose=SOURCES, place=())]
    if told != tokens:
        counts = -(-counts * told // tokens)
    counts.flags.writeable = False
    return counts


def _ragged(cv: float, num_ranks: int, tokens: int) -> np.ndarray:
    """tokens * ((r + 1) / R)^p, rounded, with the p that gives the spread; the last rank keeps all its tokens."""
    highest = math.sqrt(num_ranks - 1)
    if cv and cv >= highest:
        raise Unsupported(
            f"workload.sources.cv: {cv} cannot be reached; of {num_ranks} ranks it lies below {highest:.4g}"
        )
    low, high = 0.0, _STEEPEST
    for _ in range(60):
        power = (low + high) / 2
        low, high = (low, power) if _spread(_shares(power, num_ranks)) >= cv else (power, high)
    return np.floor(_shares(low, num_ranks) * tokens + 0.5).astype(np.int64)


def _shares(power: float, num_ranks: int) -> np.ndarray:
    return np.array([((rank + 1) / num_ranks) ** power for rank in range(num_ranks)])


def _spread(values: np.ndarray) -> float:
    return float(values.std() / values.mean())
