"""Every expert chooses its tokens (Zhou et al. 2022): loads are equal, tokens get different numbers of experts."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.routing.base import Routing, check_logits, finite_logits, is_dead, softmax_or_zero
from kernels.routing.capacity import expert_capacity
from kernels.routing.select import top_k_ids


def expert_choice(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    capacity_factor: float = 1.0,
    max_experts: int | None = None,
    backend: str = "auto",
) -> Routing:
    """Each expert takes the ceil(top_k * capacity_factor * T / E) tokens with the largest softmax score.

    T are the tokens of this call; equal scores go to the lower token. So a token has ``top_k * capacity_factor``
    experts on average. ``ids`` is [T, min(E, max_experts)] in descending score order, -1 behind them; of a token
    chosen by more experts the largest scores stay. A bias [E] adds the same to all tokens of an expert and changes
    nothing but the order of a token's experts. Rows of NaN are not chosen.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    num_tokens, num_experts = logits_TE.shape
    width = min(num_experts, max_experts or num_experts)
    logits = finite_logits(logits_TE)
    scores = softmax_or_zero(logits)
    free = scores.detach().masked_fill(is_dead(logits), -1.0)
    capacity = expert_capacity(
        num_tokens=num_tokens, num_experts=num_experts, top_k=top_k, capacity_factor=capacity_factor
    )
    tokens_EC = top_k_ids(free.t().contiguous(), capacity)
    taken = torch.zeros_like(free, dtype=torch.bool).t().contiguous().scatter_(1, tokens_EC, True).t()
    choice = free if bias is None else free + bias.detach()
    choice = choice.masked_fill(~taken | (free < 0), -torch.inf)
    ids = top_k_ids(choice, _columns(taken, width))
    kept = choice.gather(1, ids) > -torch.inf
    ids, weights = ids.masked_fill(~kept, -1).to(torch.int32), scores.gather(1, ids).masked_fill(~kept, 0.0)
    spare = width - ids.shape[1]
    return Routing(F.pad(ids, (0, spare), value=-1), F.pad(weights, (0, spare)))


def _columns(taken_TE: Tensor, width: int) -> int:
    """Columns to sort: on a CPU only as many as the token with most experts fills; to know it elsewhere would wait."""
    if taken_TE.device.type != "cpu" or not taken_TE.numel():
        return width
    return min(width, max(1, int(taken_TE.sum(1).max())))
