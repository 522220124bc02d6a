"""How popular each expert is: one log popularity per expert, shared by all ranks of one (seed, layer).

Top-k of log popularity plus Gumbel noise draws k experts without replacement, each time in proportion to the
popularity of those left. Skews that promise loads are turned into popularity by ``inclusion``: power_law (its drawn
loads), lognormal with max_over_mean (most over mean tokens of an expert), hot_rank and rotating_hot_rank (tokens of the
rank over another's), counts of a trace. Zipf, drift and lognormal with sigma name popularities and promise no load.

What is promised holds, to within 2% and the noise of what is drawn, for a router that takes the k largest logits of all
experts. A gate that leaves groups out takes its tokens' k from fewer, and bends loads: for hot ranks the model's own
gate is allowed for (``grouped``), so that they get their factor through it as well; the loads of power_law, lognormal
and counts are bent, by the more the fewer experts the kept groups hold. lognormal's max_over_mean 4 becomes 3.9 under
DeepSeek-V3's gate (4 of 8 groups, 8 of 256 experts) and 3.6 with 64 experts; ``source.skew_flags`` tells.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.router import Router
from workbench.spec.workload import (
    ColdRank,
    Drift,
    HotRank,
    Lognormal,
    PowerLaw,
    RotatingHotRank,
    Skew,
    Trace,
    Uniform,
    Zipf,
)
from workbench.workload.counter import POPULARITY, normal, permutation, uniform
from workbench.workload.drift import Walk, state
from workbench.workload.grouped import Gate, popularity_factor
from workbench.workload.inclusion import MAX_INCLUSION, NEVER, logs_of_loads, waiting_time
from workbench.workload.recording import load_recording, require_fit


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What a skew may depend on; ``num_tokens`` enter the whole expert-parallel group.

    ``gate`` is the model's own, if it leaves out groups: whatever router a cell has, it meets the same traffic.
    """

    num_experts: int
    top_k: int
    num_ranks: int
    num_tokens: int
    seed: int
    layer: int
    step: int
    gate: Gate | None = None
    trace_digest: str | None = None

    @property
    def stream(self) -> dict:
        """Where popularity is drawn from: the same in every step, so that a placement may hold for the next ones."""
        return {"seed": self.seed, "purpose": POPULARITY, "place": (self.layer, 0)}


MOVING = ("rotating_hot_rank", "drift", "trace")
"""Kinds whose popularity depends on the step."""
OF_EXPERTS = ("hot_rank", "rotating_hot_rank", "cold_rank", "trace")
"""Kinds that speak of experts by their number, which a router of token ids does not know."""


def popularity(skew: Skew, crowd: Crowd) -> np.ndarray:
    """``log_popularity``, kept for the next rank, step or cell."""
    return _kept(skew, crowd if skew.kind in MOVING else replace(crowd, step=0))


def log_popularity(skew: Skew, crowd: Crowd) -> np.ndarray:
    """float32 [E], scaled so that the popularities add up to 1 (the best logit of a token is then a plain Gumbel).

    For the kinds of ``SKEWS``; raises Unsupported for loads that no routing can reach.
    """
    logs = SKEWS[skew.kind](skew, crowd)
    peak = logs.max()
    return (logs - peak - np.log(np.exp(logs - peak).sum())).astype(np.float32)


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
    drawn = normal(crowd.num_experts, **crowd.stream)
    if skew.max_over_mean is None:
        return skew.sigma * drawn
    sigma = _sigma_for(skew.max_over_mean, drawn, crowd)
    return logs_of_loads(_arriving(np.exp(sigma * (drawn - drawn.max())), crowd.top_k), crowd.top_k)


def _sigma_for(target: float, drawn: np.ndarray, crowd: Crowd) -> float:
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
        reached = _arriving(np.exp(sigma * (drawn - drawn.max())), crowd.top_k).max() * highest >= target
        low, high = (low, sigma) if reached else (sigma, high)
    return low


def _arriving(rates: np.ndarray, top_k: int) -> np.ndarray:
    """Chances of arriving by one common time, that make k together: log-normal, and bent down near 1."""
    if top_k >= rates.size:
        return np.ones(rates.size)
    scaled = rates / rates.mean()
    return -np.expm1(-scaled * np.exp(waiting_time(scaled, top_k)))


def home_of_experts(crowd: Crowd) -> np.ndarray:
    """Rank of every expert in linear order without replicas, so that placements can be compared on one traffic."""
    return np.arange(crowd.num_experts) * crowd.num_ranks // crowd.num_experts


def _require_rank(rank: int, crowd: Crowd) -> None:
    if rank >= crowd.num_ranks:
        raise Unsupported(f"workload.skew.rank: {rank} is not among the {crowd.num_ranks} ranks of parallel.ep")


def _hot_rank(skew: HotRank, crowd: Crowd) -> np.ndarray:
    _require_rank(skew.rank, crowd)
    shares = np.where(home_of_experts(crowd) == skew.rank, skew.factor, 1.0)
    hottest = shares.max() / shares.sum() * crowd.top_k
    if hottest > 1 and crowd.num_ranks > 1 and crowd.top_k < crowd.num_experts:
        raise Unsupported(
            f"workload.skew.factor: {skew.factor} would give an expert {hottest:.3g} picks a token; a token takes an"
            f" expert once at most (top_k {crowd.top_k}, {crowd.num_experts} experts, {crowd.num_ranks} ranks)"
        )
    if crowd.gate is not None and crowd.num_ranks > 1 and skew.factor != 1:
        like = home_of_experts(crowd) == (0 if _ranks_are_alike(crowd) else skew.rank)
        factor = popularity_factor(skew.factor, hot=like.tobytes(), top_k=crowd.top_k, gate=crowd.gate)
        shares = np.where(shares == 1, 1.0, factor)
    return logs_of_loads(shares, crowd.top_k)


def _ranks_are_alike(crowd: Crowd) -> bool:
    """Whether the gate's groups lie in every rank as in the first."""
    groups, ranks = crowd.gate.num_groups, crowd.num_ranks
    return crowd.num_experts % ranks == 0 and (groups % ranks == 0 or ranks % groups == 0)


def _rotating_hot_rank(skew: RotatingHotRank, crowd: Crowd) -> np.ndarray:
    rank = crowd.step // skew.period % crowd.num_ranks
    return _hot_rank(HotRank(factor=skew.factor, rank=rank), crowd)


def _cold_rank(skew: ColdRank, crowd: Crowd) -> np.ndarray:
    _require_rank(skew.rank, crowd)
    warm = home_of_experts(crowd) != skew.rank
    if warm.sum() < crowd.top_k:
        raise Unsupported(
            f"workload.skew: without the experts of rank {skew.rank} {int(warm.sum())} are left, but a token takes"
            f" top_k {crowd.top_k}"
        )
    return np.where(warm, 0.0, NEVER)


def require_warm_experts(skew: ColdRank, router: Router, crowd: Crowd) -> None:
    """Raises Unsupported for a router that takes experts whatever their logits, or that may be left without enough."""
    _cold_rank(skew, crowd)
    if router.kind in ("random", "expert_choice"):
        raise Unsupported(f"workload.skew: router {router.kind} gives tokens to the experts of a cold_rank too")
    groups, kept = getattr(router, "num_groups", 1), getattr(router, "topk_group", 1)
    group_of = np.arange(crowd.num_experts) * groups // crowd.num_experts
    warm = np.bincount(group_of[home_of_experts(crowd) != skew.rank], minlength=groups)
    warm = np.sort(warm[warm > 0])[:kept]
    if warm.sum() < crowd.top_k:
        raise Unsupported(
            f"workload.skew: without the experts of rank {skew.rank}, {kept} of the router's {groups} groups may hold"
            f" {int(warm.sum())} experts, but a token takes top_k {crowd.top_k}"
        )


def _drift(skew: Drift, crowd: Crowd) -> np.ndarray:
    walk = Walk(crowd.num_experts, float(np.exp(-skew.rate)), crowd.seed, crowd.layer)
    return skew.sigma * state(walk, crowd.step)


def _trace(skew: Trace, crowd: Crowd) -> np.ndarray:
    """Loads in proportion to recorded counts; the other forms have no one popularity."""
    if skew.form != "counts":
        raise Unsupported(f"workload.skew: a trace of the form {skew.form} has no popularity; use counts")
    recording = load_recording(skew, crowd.trace_digest)
    require_fit(recording, num_experts=crowd.num_experts, top_k=crowd.top_k)
    counts = recording.batch(crowd.layer, crowd.step)
    busy = int((counts > 0).sum())
    if busy < crowd.top_k:
        raise ValueError(
            f"workload.skew.path: {skew.path} has tokens at {busy} experts in layer {crowd.layer}, step {crowd.step},"
            f" model.top_k is {crowd.top_k}; choose steps with more"
        )
    return logs_of_loads(counts, crowd.top_k)


SKEWS: dict[str, Callable[[Skew, Crowd], np.ndarray]] = {
    "uniform": _uniform,
    "power_law": _power_law,
    "zipf": _zipf,
    "lognormal": _lognormal,
    "hot_rank": _hot_rank,
    "rotating_hot_rank": _rotating_hot_rank,
    "cold_rank": _cold_rank,
    "drift": _drift,
    "trace": _trace,
}


_kept = lru_cache(maxsize=256)(log_popularity)
