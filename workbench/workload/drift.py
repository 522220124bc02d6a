"""Log popularity that wanders: a stationary walk over steps. E experts.

z(s + 1) = a z(s) + sqrt(1 - a^2) e, where the normal e is made to have mean 0, variance 1 and no correlation with z(s)
over the experts. So z has a standard deviation of exactly 1 in every step and exactly the correlation a with the step
before; further apart it is a^d on average.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.workload.counter import POPULARITY, normal

_BLOCK = 64
_FEWEST = 4
"""Experts from which there is room for noise without correlation."""


@dataclass(frozen=True)
class Walk:
    """One walk; ``correlation`` is that of neighbouring steps."""

    num_experts: int
    correlation: float
    seed: int
    layer: int


def state(walk: Walk, step: int) -> np.ndarray:
    """float64 [E] at one step: mean 0, standard deviation 1 (all 0 for a single expert)."""
    return _block(walk, step // _BLOCK)[step % _BLOCK]


@lru_cache(maxsize=128)
def _block(walk: Walk, number: int) -> np.ndarray:
    """States of _BLOCK steps in a row, [_BLOCK, E]."""
    states: list[np.ndarray] = [] if number == 0 else [_block(walk, number - 1)[-1]]
    for step in range(number * _BLOCK, (number + 1) * _BLOCK):
        noise = normal(walk.num_experts, seed=walk.seed, purpose=POPULARITY, place=(walk.layer, step))
        states.append(standard(noise) if step == 0 else _next(states[-1], noise, walk.correlation))
    return np.stack(states[-_BLOCK:])


def _next(before: np.ndarray, noise: np.ndarray, correlation: float) -> np.ndarray:
    if noise.size >= _FEWEST:
        noise = standard(noise)
        noise = noise - math.fsum(before * noise) / noise.size * before
    return standard(correlation * before + math.sqrt(1 - correlation**2) * standard(noise))


def standard(values: np.ndarray) -> np.ndarray:
    """Shifted and scaled to mean 0 and variance 1; sums are exact, so that their order does not matter."""
    centred = values - math.fsum(values) / values.size
    variance = math.fsum(centred * centred) / values.size
    return centred / math.sqrt(variance) if variance else centred
