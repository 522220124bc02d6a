"""Top-k of the logits, weight = sigmoid of the selected logit (Llama-4)."""

from torch import Tensor

from kernels.routing.base import Routing, check_logits, even_sigmoid, finish_weights, route_rows
from kernels.routing.select import top_k_ids


def sigmoid_topk(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    norm_topk: bool = False,
    routed_scaling: float = 1.0,
) -> Routing:
    """Select by logit + bias; weights are sigmoids, each for itself unless ``norm_topk``."""
    check_logits(logits_TE, top_k=top_k, bias=bias)

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        ids = top_k_ids(logits if bias is None else logits + bias, top_k)
        scores = even_sigmoid(logits.gather(1, ids))
        return ids, finish_weights(scores, norm_topk=norm_topk, routed_scaling=routed_scaling)

    return route_rows(logits_TE, route)
