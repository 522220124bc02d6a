"""Softmax gate with a capacity per expert (Switch Transformer for K = 1, GShard's order of choices for K > 1)."""

from torch import Tensor

from kernels.routing.base import Routing, finite_logits, is_dead
from kernels.routing.capacity import drop_over, expert_capacity
from kernels.routing.softmax_topk import softmax_topk


def switch(
    logits_TE: Tensor,
    *,
    top_k: int = 1,
    bias: Tensor | None = None,
    capacity_factor: float = 1.25,
    backend: str = "auto",
) -> Routing:
    """Select by softmax score (+ bias); weights are the scores over all experts, not normalised.

    An expert takes its tokens in token order, all first choices before any second choice. A pair over the capacity is
    dropped: id -1, weight 0. A row of NaN is dropped too and takes no capacity.
    """
    chosen = softmax_topk(logits_TE, top_k=top_k, bias=bias, norm_topk=False, backend=backend)
    num_tokens, num_experts = logits_TE.shape
    capacity = expert_capacity(
        num_tokens=num_tokens, num_experts=num_experts, top_k=top_k, capacity_factor=capacity_factor
    )
    return drop_over(without_dead(chosen, logits_TE), capacity)


def without_dead(routing: Routing, logits_TE: Tensor) -> Routing:
    """The routing with the tokens dropped whose logits are NaN or -inf throughout; their weights are 0 already."""
    return Routing(routing.ids.masked_fill(is_dead(finite_logits(logits_TE.detach())), -1), routing.weights)
