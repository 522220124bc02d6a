"""Top-k of the logits, then softmax over the selected (GPT-OSS)."""

from torch import Tensor

from kernels.routing.base import Routing, check_logits, route_rows, softmax_or_zero
from kernels.routing.select import top_k_ids


def topk_softmax(logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, routed_scaling: float = 1.0) -> Routing:
    """Select by logit + bias; weights are the softmax of the K selected logits."""
    check_logits(logits_TE, top_k=top_k, bias=bias)

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        ids = top_k_ids(logits if bias is None else logits + bias, top_k)
        return ids, softmax_or_zero(logits.gather(1, ids)) * routed_scaling

    return route_rows(logits_TE, route)
