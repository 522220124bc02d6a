"""Sigmoid scores, a selection bias, and selection limited to the best groups (DeepSeek-V3; Kimi-K2 has one group)."""

from torch import Tensor

from kernels.routing.base import Routing
from kernels.routing.rules import ScoreRule, route_by


def sigmoid_group(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_group: int = 1,
    norm_topk: bool = True,
    routed_scaling: float = 1.0,
    backend: str = "auto",
) -> Routing:
    """Select by sigmoid score + bias inside the ``topk_group`` best of ``num_groups`` equal groups of neighbours.

    A group's score is the sum of its two largest biased scores. Weights are the unbiased scores of the selected,
    normalised if ``norm_topk``, times ``routed_scaling``. Source: DeepSeek-V3's ``inference/model.py``.
    """
    rule = ScoreRule(
        select_by="sigmoid",
        weigh_by="sigmoid",
        norm_topk=norm_topk,
        routed_scaling=routed_scaling,
        num_groups=num_groups,
        topk_group=topk_group,
    )
    return route_by(rule, logits_TE, top_k=top_k, bias=bias, backend=backend)
