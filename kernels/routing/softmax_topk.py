"""Softmax over all experts, then top-k (Mixtral, Qwen3: normalised; DeepSeek-V2-Lite: not)."""

from torch import Tensor

from kernels.routing.base import Routing, check_logits, finish_weights, route_rows, softmax_or_zero
from kernels.routing.select import top_k_ids


def softmax_topk(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    norm_topk: bool = True,
    routed_scaling: float = 1.0,
) -> Routing:
    """Select by softmax score + bias; weights are the scores, normalised over the selected if ``norm_topk``.

    Without a bias the selection is made on the logits, which order as the scores do and do not underflow.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        if bias is None and norm_topk:
            ids = top_k_ids(logits, top_k)
            return ids, softmax_or_zero(logits.gather(1, ids)) * routed_scaling
        scores = softmax_or_zero(logits)
        ids = top_k_ids(logits if bias is None else scores + bias, top_k)
        return ids, finish_weights(scores.gather(1, ids), norm_topk=norm_topk, routed_scaling=routed_scaling)

    return route_rows(logits_TE, route)
