"""Top-k of the logits, then softmax over the selected (GPT-OSS)."""

from torch import Tensor

from kernels.routing.base import Routing
from kernels.routing.rules import ScoreRule, route_by


def topk_softmax(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    routed_scaling: float = 1.0,
    backend: str = "auto",
) -> Routing:
    """Select by logit + bias; weights are the softmax of the K selected logits."""
    rule = ScoreRule(select_by="logits", weigh_by="selected", routed_scaling=routed_scaling)
    return route_by(rule, logits_TE, top_k=top_k, bias=bias, backend=backend)
