"""Top-k of the logits, weight = sigmoid of the selected logit (Llama-4)."""

from torch import Tensor

from kernels.routing.base import Routing
from kernels.routing.rules import ScoreRule, route_by


def sigmoid_topk(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    norm_topk: bool = False,
    routed_scaling: float = 1.0,
    backend: str = "auto",
) -> Routing:
    """Select by logit + bias; weights are sigmoids, each for itself unless ``norm_topk``."""
    rule = ScoreRule(select_by="logits", weigh_by="sigmoid", norm_topk=norm_topk, routed_scaling=routed_scaling)
    return route_by(rule, logits_TE, top_k=top_k, bias=bias, backend=backend)
