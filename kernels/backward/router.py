"""Combine weights as a differentiable function of the logits, for selected experts: the router's backward.

T tokens, E experts, K top-k. Selection itself has no gradient; the weights of the selected do.
"""

import torch
from torch import Tensor

SCORES = {
    "softmax_topk": "softmax",
    "topk_softmax": "selected",
    "sigmoid_topk": "sigmoid",
    "sigmoid_group": "sigmoid",
    "softmax_group": "softmax",
    "switch": "softmax",
    "batch_prioritized": "softmax",
    "expert_choice": "softmax",
    "hash": "constant",
    "random": "constant",
}
"""Router -> what its weights are made of: softmax or sigmoid of all logits, softmax of the selected, or nothing."""


def router_weights(
    logits_TE: Tensor, ids_TK: Tensor, *, kind: str, norm_topk: bool = False, routed_scaling: float = 1.0
) -> Tensor:
    """[T, K] weights that ``ROUTERS[kind]`` gives the experts ``ids_TK`` (-1: weight 0), through which autograd flows.

    A normalised row of zeros stays zeros; pairs that are dropped do not count in the sum. Raises ValueError for a
    router without a gradient here.
    """
    if kind not in SCORES:
        raise ValueError(f"router: {kind!r} has no gradient here; known: {', '.join(SCORES)}")
    kept_TK, safe_TK = ids_TK >= 0, ids_TK.clamp(min=0).long()
    scores_TK = _scores(logits_TE, safe_TK, SCORES[kind]).masked_fill(~kept_TK, 0.0)
    if norm_topk and SCORES[kind] in ("softmax", "sigmoid"):
        total_T1 = scores_TK.sum(-1, keepdim=True)
        scores_TK = scores_TK / total_T1.clamp(min=torch.finfo(scores_TK.dtype).tiny)
    return scores_TK * (1.0 if SCORES[kind] == "constant" else routed_scaling)


def _scores(logits_TE: Tensor, ids_TK: Tensor, kind: str) -> Tensor:
    if kind == "constant":
        return torch.full(ids_TK.shape, 1.0 / max(ids_TK.shape[1], 1), dtype=logits_TE.dtype, device=logits_TE.device)
    if kind == "softmax":
        return logits_TE.softmax(-1).gather(1, ids_TK)
    selected_TK = logits_TE.gather(1, ids_TK)
    return selected_TK.sigmoid() if kind == "sigmoid" else selected_TK.softmax(-1)
