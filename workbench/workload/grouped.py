"""What a gate that keeps only the best groups makes of a popular rank: more tokens than its popularity says.

A group with popular experts is kept more often, so a rank that should draw f times the tokens of another needs less
than f times the popularity. There is no closed form for it: tokens are drawn and routed, and the popularity found by
secants.
"""

import math
from functools import lru_cache

import numpy as np
import torch

from kernels.routing import ROUTERS
from workbench.spec.router import SigmoidGroup, SoftmaxGroup
from workbench.workload.counter import TRIALS, gumbel
from workbench.workload.inclusion import logs_of_loads

Gate = SigmoidGroup | SoftmaxGroup

_TOKENS = 32_768
_PART = 4096  # tokens routed at once
_ROUNDS = 4
_STEPS = 512  # popularity is rounded to 2^(1 / _STEPS), far below what the drawn tokens tell


def limits_groups(router: object) -> bool:
    """Whether a gate leaves groups of experts out."""
    return isinstance(router, Gate) and router.topk_group < router.num_groups


@lru_cache(maxsize=32)
def popularity_factor(factor: float, *, hot: bytes, top_k: int, gate: Gate) -> float:
    """How much more popular the hot experts must be for ``factor`` times the load of the others, each by itself.

    ``hot`` is bool [E] as bytes. Loads under a gate without groups are those of ``logs_of_loads``.
    """
    hot_E = np.frombuffer(hot, bool)
    noise = gumbel(_TOKENS, hot_E.size, seed=0, purpose=TRIALS, place=())
    wanted = math.log2(factor)
    tried, reached = 0.0, 0.0  # equal popularity gives equal loads
    asked = 0.8 * wanted
    for _ in range(_ROUNDS):
        asked = round(asked * _STEPS) / _STEPS
        got = math.log2(_load_factor(noise, hot_E, 2**asked, top_k, gate))
        if got == reached or asked == tried:
            break
        slope = (asked - tried) / (got - reached)
        tried, reached, asked = asked, got, asked + (wanted - got) * slope
    return 2 ** (round(asked * _STEPS) / _STEPS)


def _load_factor(noise: np.ndarray, hot_E: np.ndarray, factor: float, top_k: int, gate: Gate) -> float:
    """Load of a hot expert over that of another, of the drawn tokens."""
    logs = logs_of_loads(np.where(hot_E, factor, 1.0), top_k)
    logs = (logs - np.log(np.exp(logs).sum())).astype(np.float32)
    picks = np.zeros(2)
    for start in range(0, len(noise), _PART):
        logits = torch.from_numpy(noise[start : start + _PART] + logs)
        groups = {"num_groups": gate.num_groups, "topk_group": gate.topk_group}
        ids = ROUTERS[gate.kind](logits, top_k=top_k, backend="torch", **groups).ids.numpy()
        taken = hot_E[ids[ids >= 0]].sum()
        picks += taken, (ids >= 0).sum() - taken
    return float(max(picks[0], 1) / hot_E.sum() / (max(picks[1], 1) / (~hot_E).sum()))
