"""Softmax scores with selection limited to the best groups by their maximum (DeepSeek-V2)."""

from torch import Tensor

from kernels.routing.base import Routing
from kernels.routing.rules import ScoreRule, route_by


def softmax_group(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_group: int = 1,
    norm_topk: bool = False,
    routed_scaling: float = 1.0,
    backend: str = "auto",
) -> Routing:
    """Select by softmax score + bias inside the ``topk_group`` best of ``num_groups`` equal groups of neighbours.

    A group's score is its largest one. Weights are the scores over all experts, normalised over the selected if
    ``norm_topk``, times ``routed_scaling``. Without a bias the selection is made on the logits, which order alike.
    """
    rule = ScoreRule(
        select_by="logits" if bias is None else "softmax",
        weigh_by="softmax",
        norm_topk=norm_topk,
        routed_scaling=routed_scaling,
        num_groups=num_groups,
        topk_group=topk_group,
    )
    return route_by(rule, logits_TE, top_k=top_k, bias=bias, backend=backend)
