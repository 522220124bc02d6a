"""Sigmoid scores, a selection bias, and selection limited to the best groups (DeepSeek-V3; Kimi-K2 has one group)."""

import torch
from torch import Tensor

from kernels.routing.base import Routing, check_groups, check_logits, finish_weights, route_rows
from kernels.routing.select import top_k_ids, top_k_in_groups


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
        scores = logits.sigmoid()
        choice = scores if bias is None else scores + bias
        if topk_group == num_groups:
            ids = top_k_ids(choice, top_k)
        else:
            group_scores = _two_largest_sum(choice.unflatten(1, (num_groups, -1)))
            ids = top_k_in_groups(choice, group_scores, topk_group=topk_group, k=top_k)
        return ids, finish_weights(scores.gather(1, ids), norm_topk=norm_topk, routed_scaling=routed_scaling)

    return route_rows(logits_TE, route)


def _two_largest_sum(grouped: Tensor) -> Tensor:
    """[rows, G, S] -> [rows, G]; the largest alone when S is 1. Two reductions are faster than a top-k here."""
    largest = grouped.amax(-1, keepdim=True)
    if grouped.shape[-1] == 1:
        return largest.squeeze(-1)
    is_largest = grouped == largest
    below = grouped.masked_fill(is_largest, -torch.inf).amax(-1)
    largest = largest.squeeze(-1)
    return largest + torch.where(is_largest.sum(-1) > 1, largest, below)
