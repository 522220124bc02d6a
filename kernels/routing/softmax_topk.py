"""Softmax over all experts, then top-k (Mixtral, Qwen3: normalised; DeepSeek-V2-Lite: not)."""

from torch import Tensor

from kernels.routing.base import Routing
from kernels.routing.rules import ScoreRule, route_by


def softmax_topk(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    norm_topk: bool = True,
    routed_scaling: float = 1.0,
    backend: str = "auto",
) -> Routing:
    """Select by softmax score + bias; weights are the scores, normalised over the selected if ``norm_topk``.

    Without a bias the selection is made on the logits, which order as the scores do and do not underflow.
    """
    plain = bias is None
    rule = ScoreRule(
        select_by="logits" if plain else "softmax",
        weigh_by="selected" if plain and norm_topk else "softmax",
        norm_topk=norm_topk,
        routed_scaling=routed_scaling,
    )
    return route_by(rule, logits_TE, top_k=top_k, bias=bias, backend=backend)
