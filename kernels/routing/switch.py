"""Softmax gate with a capacity per expert (Switch Transformer for K = 1, GShard's order of choices for K > 1)."""

from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from kernels.routing.base import Routing, check_logits, route_rows, softmax_or_zero
from kernels.routing.select import top_k_ids


def expert_capacity(*, num_tokens: int, num_experts: int, top_k: int, capacity_factor: float) -> int:
    """Tokens an expert takes: ceil(top_k * capacity_factor * T / E), at most T.

    The factor is read as the decimal it is written as, so 1.1 * 10 is 11 and not a little more.
    Switch Transformer (Fedus et al. 2021), equation 3, with its fraction rounded up.
    """
    return min(num_tokens, ceil(Fraction(str(capacity_factor)) * top_k * num_tokens / num_experts))


def switch(logits_TE: Tensor, *, top_k: int = 1, bias: Tensor | None = None, capacity_factor: float = 1.25) -> Routing:
    """Select by softmax score (+ bias); weights are the scores over all experts, not normalised.

    An expert takes its tokens in token order, all first choices before any second choice. A pair over the capacity is
    dropped: id -1, weight 0. A row of NaN is dropped too and takes no capacity.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    num_tokens, num_experts = logits_TE.shape

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = softmax_or_zero(logits)
        ids = top_k_ids(logits if bias is None else scores + bias, top_k)
        dead = (logits == -torch.inf).all(1, keepdim=True)
        return ids.masked_fill(dead, -1), scores.gather(1, ids)

    routing = route_rows(logits_TE, route)
    capacity = expert_capacity(
        num_tokens=num_tokens, num_experts=num_experts, top_k=top_k, capacity_factor=capacity_factor
    )
    over = _place_in_expert(routing.ids) >= capacity
    return Routing(routing.ids.masked_fill(over, -1), routing.weights.masked_fill(over, 0.0))


def _place_in_expert(ids_TK: Tensor) -> Tensor:
    """For each pair, how many pairs of its expert come before it: first choices of all tokens, then second ones."""
    queue = ids_TK.t().reshape(-1).long()
    order = queue.argsort(stable=True)
    in_order = queue[order]
    first = torch.searchsorted(in_order, in_order)
    place = torch.empty_like(queue)
    place[order] = torch.arange(queue.numel(), device=queue.device) - first
    return place.view(ids_TK.shape[1], ids_TK.shape[0]).t()
