"""Expert capacity: how many tokens of one batch an expert takes, and what becomes of the others.

T tokens of one source rank, E experts, K top-k. Slots go to all first choices before any second choice, and among
equal choices in token order or by priority.
"""

from fractions import Fraction
from math import ceil, floor

import torch
from torch import Tensor

from kernels.routing.base import Routing


def expert_capacity(*, num_tokens: int, num_experts: int, top_k: int, capacity_factor: float) -> int:
    """Tokens an expert takes: ceil(top_k * capacity_factor * T / E), at most T.

    The factor is read as the decimal it is written as, so 1.1 * 10 is 11 and not a little more.
    Switch Transformer (Fedus et al. 2021), equation 3, with its fraction rounded up.
    """
    return min(num_tokens, ceil(Fraction(str(capacity_factor)) * top_k * num_tokens / num_experts))


def slot_limit(*, num_tokens: int, num_experts: int, top_k: int, capacity_factor: float) -> int | None:
    """Most slots an expert has for the tokens of one source rank; None for factor 0, which drops nothing.

    K * floor(|f| * ceil(T / E)) as in Tutel, the factor read as a decimal, at most T. A factor other than 0 gives a
    batch with tokens one slot at least: Tutel's truncation gives none for T = 10, E = 16, f = 0.5.
    """
    if capacity_factor == 0:
        return None
    share = floor(abs(Fraction(str(capacity_factor))) * ceil(num_tokens / num_experts))
    return min(num_tokens, max(1, top_k * share))


def padded_capacity(ids_TK: Tensor, *, num_experts: int, capacity_factor: float) -> Tensor:
    """Slots that every expert holds in a padded exchange, int64 scalar on the device of the ids.

    ``slot_limit`` for a positive factor; else the pairs of the fullest expert, and at most ``slot_limit``. Ids are
    those before the drop. Ranks of a group take the largest of theirs.
    """
    num_tokens, top_k = ids_TK.shape
    limit = slot_limit(num_tokens=num_tokens, num_experts=num_experts, top_k=top_k, capacity_factor=capacity_factor)
    if capacity_factor > 0:
        return torch.full((), limit, dtype=torch.int64, device=ids_TK.device)
    fullest = expert_counts(ids_TK, num_experts).amax()
    return fullest if limit is None else fullest.clamp(max=limit)


def expert_counts(ids_TK: Tensor, num_experts: int) -> Tensor:
    """Pairs of each expert, int64 [E], without waiting for the device (as bincount would); -1 is left out."""
    flat = ids_TK.reshape(-1).long()
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=flat.device)
    ones = torch.ones_like(flat)
    return counts.scatter_add_(0, flat.masked_fill(flat < 0, num_experts), ones)[:num_experts]


def limit_capacity(
    routing: Routing, *, num_experts: int, capacity_factor: float, priority_T: Tensor | None = None
) -> Routing:
    """The routing with the pairs over ``slot_limit`` dropped: id -1, weight 0. Factors of both signs drop alike."""
    num_tokens, top_k = routing.ids.shape
    limit = slot_limit(num_tokens=num_tokens, num_experts=num_experts, top_k=top_k, capacity_factor=capacity_factor)
    return routing if limit is None else drop_over(routing, limit, priority_T=priority_T)


def drop_over(routing: Routing, limit: int, *, priority_T: Tensor | None = None) -> Routing:
    """Drop the pairs that find their expert full with ``limit`` pairs: id -1, weight 0."""
    over = place_in_expert(routing.ids, priority_T=priority_T) >= limit
    return Routing(routing.ids.masked_fill(over, -1), routing.weights.masked_fill(over, 0.0))


def place_in_expert(ids_TK: Tensor, *, priority_T: Tensor | None = None) -> Tensor:
    """int64 [T, K]: for each pair, how many pairs of its expert come before it.

    First choices of all tokens, then second ones; among them the larger ``priority_T``, then the earlier token.
    """
    if priority_T is None:
        return _place_in_order(ids_TK)
    turn_T = priority_T.detach().argsort(descending=True, stable=True)
    places = torch.empty(ids_TK.shape, dtype=torch.int64, device=ids_TK.device)
    return places.index_copy_(0, turn_T, _place_in_order(ids_TK.index_select(0, turn_T)))


def _place_in_order(ids_TK: Tensor) -> Tensor:
    queue = ids_TK.t().reshape(-1).long()
    ordered, order = queue.sort(stable=True)
    place = torch.arange(queue.numel(), device=queue.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(queue).scatter_(0, order, place).view(ids_TK.shape[1], ids_TK.shape[0]).t()
