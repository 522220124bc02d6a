"""A placement judged over many layers on steps that did not place it. L layers, E experts, R ranks, T tokens in all.

Routing 58 layers of 131,072 tokens takes minutes; their counts need only the chance of each expert to be among a
token's k, which ``workload.inclusion`` gives for a router that takes the largest logits. An expert's count is then
binomial. Experts are drawn apart from each other, though a token's k are bound to be different ones, so the sums of
ranks vary a little more than routed ones do.
"""

import time
from dataclasses import dataclass

import numpy as np

from workbench.balance.expert_map import ExpertMap, even_rank_loads
from workbench.balance.placement import place
from workbench.spec.workload import Skew
from workbench.workload.counter import normal
from workbench.workload.inclusion import inclusion
from workbench.workload.skew import Crowd, log_popularity

_COUNTS = 97  # a purpose of its own in the counter's streams


def layer_chances(skew: Skew, crowd: Crowd) -> np.ndarray:
    """Chance of every expert to be among a token's k, float64 [E]."""
    return inclusion(np.exp(log_popularity(skew, crowd).astype(float)), crowd.top_k)


def drawn_counts(chances: np.ndarray, crowd: Crowd) -> np.ndarray:
    """Tokens per expert of one step, int64 [E]: binomial (by its normal limit) in ``crowd.num_tokens`` tokens."""
    noise = normal(chances.size, seed=crowd.seed, purpose=_COUNTS, place=(crowd.layer, crowd.step))
    spread = np.sqrt(crowd.num_tokens * chances * (1 - chances))
    counts = np.rint(crowd.num_tokens * chances + spread * noise).astype(np.int64)
    return np.clip(counts, 0, crowd.num_tokens)


@dataclass(frozen=True)
class Trial:
    """``before_L`` and ``after_L``: max/mean over ranks of linear and of the judged placement, mean over judging steps;
    ``seconds`` is what placing all layers took."""

    before_L: np.ndarray
    after_L: np.ndarray
    maps: tuple[ExpertMap, ...]
    seconds: float


def judge(
    placing_LE: np.ndarray, judging_SLE: np.ndarray, *, num_ranks: int, kind: str, redundant: int,
    num_nodes: int = 1, num_groups: int = 1,
) -> Trial:  # fmt: skip
    """Places each layer with ``placing_LE`` and judges it on the steps ``judging_SLE``, replicas sharing evenly.

    ``before_L`` is linear placement without replicas where experts divide by the ranks, else with the same slots.
    """
    num_layers, num_experts = placing_LE.shape
    started = time.perf_counter()
    maps = tuple(
        place(
            num_experts, num_ranks, kind=kind, redundant=redundant, loads=loads, num_nodes=num_nodes,
            num_groups=num_groups,
        )
        for loads in placing_LE
    )  # fmt: skip
    seconds = time.perf_counter() - started
    spare = 0 if num_experts % num_ranks == 0 else redundant
    linear = place(num_experts, num_ranks, kind="linear", redundant=spare)
    figures = [
        [[_max_over_mean(even_rank_loads(one, step[layer])) for step in judging_SLE] for one in (linear, maps[layer])]
        for layer in range(num_layers)
    ]
    before_after_L2 = np.array(figures).mean(axis=2)
    return Trial(before_after_L2[:, 0], before_after_L2[:, 1], maps, seconds)


def _max_over_mean(loads_R: np.ndarray) -> float:
    return float(loads_R.max() / loads_R.mean()) if loads_R.any() else 1.0
