"""Softmax gate whose experts take the tokens with the largest score first (Riquelme et al. 2021, V-MoE)."""

from torch import Tensor

from kernels.routing.base import Routing, finish_weights
from kernels.routing.capacity import limit_capacity
from kernels.routing.softmax_topk import softmax_topk
from kernels.routing.switch import without_dead


def batch_prioritized(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    capacity_factor: float = 1.0,
    norm_topk: bool = False,
    backend: str = "auto",
) -> Routing:
    """Select by softmax score (+ bias); a token's turn is that of its largest score, equal ones by token index.

    All first choices come before any second choice. ``capacity_factor`` as in ``capacity.slot_limit``: 0 drops
    nothing and a negative factor drops as its absolute value does. Weights are the scores, normalised over the
    selected (before the drop) if ``norm_topk``. A row of NaN is dropped and takes no capacity.
    """
    chosen = softmax_topk(logits_TE, top_k=top_k, bias=bias, norm_topk=False, backend=backend)
    priority_T = chosen.weights.amax(1)
    if norm_topk:
        chosen = Routing(chosen.ids, finish_weights(chosen.weights, norm_topk=True, routed_scaling=1.0))
    return limit_capacity(
        without_dead(chosen, logits_TE),
        num_experts=logits_TE.shape[1],
        capacity_factor=capacity_factor,
        priority_T=priority_T,
    )
