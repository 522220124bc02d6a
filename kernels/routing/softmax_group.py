"""Softmax scores with selection limited to the best groups by their maximum (DeepSeek-V2)."""

from torch import Tensor

from kernels.routing.base import Routing, check_groups, check_logits, finish_weights, route_rows, softmax_or_zero
from kernels.routing.select import top_k_in_groups


def softmax_group(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    num_groups: int = 1,
    topk_group: int = 1,
    norm_topk: bool = False,
    routed_scaling: float = 1.0,
) -> Routing:
    """Select by softmax score + bias inside the ``topk_group`` best of ``num_groups`` equal groups of neighbours.

    A group's score is its largest one. Weights are the scores over all experts, normalised over the selected if
    ``norm_topk``, times ``routed_scaling``. Without a bias the selection is made on the logits, which order alike.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    check_groups(logits_TE.shape[1], top_k=top_k, num_groups=num_groups, topk_group=topk_group)

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        scores = softmax_or_zero(logits)
        choice = logits if bias is None else scores + bias
        ids = top_k_in_groups(choice, _largest, num_groups=num_groups, topk_group=topk_group, k=top_k)
        return ids, finish_weights(scores.gather(1, ids), norm_topk=norm_topk, routed_scaling=routed_scaling)

    return route_rows(logits_TE, route)


def _largest(grouped: Tensor) -> Tensor:
    return grouped.amax(-1)
