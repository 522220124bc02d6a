"""Sigmoid scores, a selection bias, and selection limited to the best groups (DeepSeek-V3; Kimi-K2 has one group)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.routing.base import Routing, check_groups, check_logits, even_sigmoid, finish_weights, route_rows
from kernels.routing.select import top_k_in_groups


def sigmoid_group(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_group: int = 1,
    norm_topk: bool = True,
    routed_scaling: float = 1.0,
) -> Routing:
    """Select by sigmoid score + bias inside the ``topk_group`` best of ``num_groups`` equal groups of neighbours.

    A group's score is the sum of its two largest biased scores. Weights are the unbiased scores of the selected,
    normalised if ``norm_topk``, times ``routed_scaling``. Source: DeepSeek-V3's ``inference/model.py``.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    check_groups(logits_TE.shape[1], top_k=top_k, num_groups=num_groups, topk_group=topk_group)

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = even_sigmoid(logits)
        choice = scores if bias is None else scores + bias
        ids = top_k_in_groups(choice, _two_largest_sum, num_groups=num_groups, topk_group=topk_group, k=top_k)
        return ids, finish_weights(scores.gather(1, ids), norm_topk=norm_topk, routed_scaling=routed_scaling)

    return route_rows(logits_TE, route)


def _two_largest_sum(grouped: Tensor) -> Tensor:
    """[rows, G, S] -> [rows, G]; the largest alone when S is 1.

    On a CPU halves meet as in a tournament that also keeps the best loser: three times faster than a top-k there.
    """
    size = grouped.shape[-1]
    if size == 1 or grouped.device.type != "cpu":
        return grouped.topk(min(2, size)).values.sum(-1)
    largest = F.pad(grouped, (0, (1 << (size - 1).bit_length()) - size), value=-torch.inf)
    second = None
    while largest.shape[-1] > 1:
        left, right = largest.chunk(2, -1)
        loser = torch.minimum(left, right)
        second = loser if second is None else torch.maximum(loser, torch.maximum(*second.chunk(2, -1)))
        largest = torch.maximum(left, right)
    return (largest + second).squeeze(-1)
