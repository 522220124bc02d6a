"""How popular each expert is: one log popularity per expert, shared by all ranks of one (seed, layer, step).

Top-k of log popularity plus Gumbel noise draws k experts without replacement, each time in proportion to the
popularity of those left. Equivalently every expert waits an exponential time with its popularity as rate, and the
first k to arrive are taken; so with rates w an expert is among them with a chance near 1 - exp(-w * t), where t makes
the chances add up to k. Skews that promise loads (power_law, hot_rank, lognormal with max_over_mean) are turned into
popularity through this relation; routers that limit groups bend the loads further.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.workload import HotRank, Lognormal, PowerLaw, Skew, Uniform, Zipf
from workbench.workload.counter import POPULARITY, permutation, uniform

MAX_INCLUSION = 0.999  # an expert that every token takes would need an infinite logit


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What a skew may depend on; ``num_tokens`` enter the whole expert-parallel group."""

    num_experts: int
    top_k: int
    num_ranks: int
    num_tokens: int
    seed: int
    layer: int
    step: int

    @property
    def stream(self) -> dict:
        return {"seed": self.seed, "purpose": POPULARITY, "place": (self.layer, self.step)}


def log_popularity(skew: Skew, crowd: Crowd) -> np.ndarray:
    """float32 [E], scaled so that the popularities add up to 1 (the best logit of a token is then a plain Gumbel).

    Raises Unsupported for kinds without a sampler and for loads that no routing can reach.
    """
    if skew.kind not in SKEWS:
        raise Unsupported(f"workload.skew: kind {skew.kind} has no sampler yet; known: balanced, {', '.join(SKEWS)}")
    logs = SKEWS[skew.kind](skew, crowd)
    peak = logs.max()
    return (logs - peak - np.log(np.exp(logs - peak).sum())).astype(np.float32)


def inclusion(rates: np.ndarray, top_k: int) -> np.ndarray:
    """Chance of every expert to be among a token's k, float64 [E], summing to k; bisects the waiting time."""
    if top_k >= rates.size:
        return np.ones(rates.size)
    low, high = -60.0, 60.0  # log of the waiting time, for rates scaled to a mean of 1
    scaled = rates / rates.mean()
    for _ in range(80):
        middle = (low + high) / 2
        short = -np.expm1(-scaled * np.exp(middle)).sum() < top_k
        low, high = (middle, high) if short else (low, middle)
    return -np.expm1(-scaled * np.exp(low))


def logs_of_loads(shares: np.ndarray, top_k: int) -> np.ndarray:
    """Log popularity under which expert loads are in proportion to ``shares``; loads above one a token are cut."""
    chances = shares / shares.sum() * top_k
    if top_k >= shares.size:
        return np.zeros(shares.size)
    for _ in range(shares.size):
        over = chances >= MAX_INCLUSION
        free = ~over
        if not over.any() or not free.any():
            break
        chances[over] = MAX_INCLUSION
        lack = top_k - MAX_INCLUSION * over.sum() - chances[free].sum()
        if lack <= 1e-12:
            break
        chances[free] *= 1 + lack / chances[free].sum()
    return np.log(-np.log1p(-np.minimum(chances, MAX_INCLUSION)))


def _uniform(skew: Uniform, crowd: Crowd) -> np.ndarray:
    return np.zeros(crowd.num_experts)


def _power_law(skew: PowerLaw, crowd: Crowd) -> np.ndarray:
    """Loads drawn as aiconfigurator draws them: inverse CDF on [1, 0.8 T], or [0.01, 2] when T * k <= E."""
    crowded = crowd.num_tokens * crowd.top_k > crowd.num_experts
    low, high = (1.0, max(1.0, 0.8 * crowd.num_tokens)) if crowded else (0.01, 2.0)
    u = uniform(crowd.num_experts, **crowd.stream)
    if abs(skew.alpha - 1) < 1e-9:
        loads = low * (high / low) ** u
    else:
        power = 1 - skew.alpha
        loads = (low**power + u * (high**power - low**power)) ** (1 / power)
    return logs_of_loads(loads, crowd.top_k)


def _zipf(skew: Zipf, crowd: Crowd) -> np.ndarray:
    order = permutation(crowd.num_experts, **crowd.stream)
    return -skew.alpha * np.log1p(order)


def _lognormal(skew: Lognormal, crowd: Crowd) -> np.ndarray:
    normal = np.array([NormalDist().inv_cdf(u) for u in uniform(crowd.num_experts, **crowd.stream)])
    if skew.max_over_mean is None:
        return skew.sigma * normal
    return _sigma_for(skew.max_over_mean, normal, crowd) * normal


def _sigma_for(target: float, normal: np.ndarray, crowd: Crowd) -> float:
    """The sigma whose expected loads have this maximum over their mean."""
    highest = crowd.num_experts / crowd.top_k
    if target == 1:
        return 0.0
    if not 1 <= target < highest * MAX_INCLUSION:
        raise Unsupported(
            f"workload.skew.max_over_mean: {target} cannot be reached; with {crowd.num_experts} experts and"
            f" top_k {crowd.top_k} it lies between 1 and {highest * MAX_INCLUSION:.4g}"
        )
    low, high = 0.0, 50.0
    for _ in range(60):
        sigma = (low + high) / 2
        spread = sigma * (normal - normal.max())
        reached = inclusion(np.exp(spread), crowd.top_k).max() * highest >= target
        low, high = (low, sigma) if reached else (sigma, high)
    return low


def _hot_rank(skew: HotRank, crowd: Crowd) -> np.ndarray:
    """The rank's experts under linear placement, so that placements can be compared on the same traffic."""
    if skew.rank >= crowd.num_ranks:
        raise Unsupported(f"workload.skew.rank: {skew.rank} is not among the {crowd.num_ranks} ranks of parallel.ep")
    home = np.arange(crowd.num_experts) * crowd.num_ranks // crowd.num_experts
    shares = np.where(home == skew.rank, skew.factor, 1.0)
    hottest = shares.max() / shares.sum() * crowd.top_k
    if hottest > 1 and crowd.num_ranks > 1 and crowd.top_k < crowd.num_experts:
        raise Unsupported(
            f"workload.skew.factor: {skew.factor} would give an expert {hottest:.3g} picks a token; a token takes an"
            f" expert once at most (top_k {crowd.top_k}, {crowd.num_experts} experts, {crowd.num_ranks} ranks)"
        )
    return logs_of_loads(shares, crowd.top_k)


SKEWS: dict[str, Callable[[Skew, Crowd], np.ndarray]] = {
    "uniform": _uniform,
    "power_law": _power_law,
    "zipf": _zipf,
    "lognormal": _lognormal,
    "hot_rank": _hot_rank,
}
