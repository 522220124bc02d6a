"""Auxiliary losses of a router, as scalars to be multiplied by a coefficient and added; all differentiable.

T tokens, E experts, K top-k. ``scores_TE`` are softmax scores over all experts; ids of -1 count for no expert. All
but the z-loss are smallest for an even load: 1 for ``gshard_loss`` and ``switch_loss``, 0 for the others.
"""

import torch
from torch import Tensor

from kernels.routing.base import Routing
from kernels.routing.capacity import expert_counts


def gshard_loss(scores_TE: Tensor, ids_TK: Tensor) -> Tensor:
    """E * sum_e(mean score of e * share of tokens whose first choice is e). GShard (Lepikhin et al. 2020), section
    2.2, whose mean over experts is times E^2 here as in Tutel."""
    return switch_loss(scores_TE, ids_TK[:, :1])


def switch_loss(scores_TE: Tensor, ids_TK: Tensor) -> Tensor:
    """E * sum_e(mean score of e * share of all choices that are e). Switch Transformer (Fedus et al. 2021), equations
    4 to 6, without its coefficient; for K > 1 every choice counts 1/K."""
    num_tokens, num_experts = scores_TE.shape
    share_E = expert_counts(ids_TK, num_experts).to(scores_TE.dtype) / max(1, ids_TK.numel())
    return num_experts * (scores_TE.sum(0) / max(1, num_tokens) * share_E).sum()


def importance_loss(gates_TE: Tensor) -> Tensor:
    """Squared coefficient of variation of the gate weights that each expert receives (Shazeer et al. 2017, equation
    7). ``gates_TE`` from ``dense_gates``, or scores over all experts as in Tutel."""
    return squared_variation(gates_TE.sum(0))


def load_loss(clean_TE: Tensor, noisy_TE: Tensor, std: Tensor | float, *, top_k: int) -> Tensor:
    """Squared coefficient of variation of ``smooth_load`` (Shazeer et al. 2017, equation 11)."""
    return squared_variation(smooth_load(clean_TE, noisy_TE, std, top_k=top_k))


def smooth_load(clean_TE: Tensor, noisy_TE: Tensor, std: Tensor | float, *, top_k: int) -> Tensor:
    """[E]: the chance, summed over tokens, that an expert is among the K if its own noise were drawn again.

    Phi((clean - k-th largest of the other noisy logits) / std): Shazeer et al. 2017, appendix A. Raises ValueError
    unless K < E.
    """
    num_experts = clean_TE.shape[1]
    if not 1 <= top_k < num_experts:
        raise ValueError(f"top_k must lie in 1..num_experts - 1, got top_k {top_k} and num_experts {num_experts}")
    top = noisy_TE.topk(top_k + 1, dim=1).values
    inside, outside = top[:, top_k - 1 : top_k], top[:, top_k:]
    threshold = torch.where(noisy_TE >= inside, outside, inside)
    return torch.special.ndtr((clean_TE - threshold) / std).sum(0)


def z_loss(logits_TE: Tensor) -> Tensor:
    """Mean over tokens of logsumexp(logits)^2 (Zoph et al. 2022, ST-MoE, equation 5)."""
    return logits_TE.logsumexp(1).square().sum() / max(1, logits_TE.shape[0])


def dense_gates(routing: Routing, num_experts: int) -> Tensor:
    """Weights as [T, E], 0 for experts not chosen."""
    ids, weights = routing.ids.long(), routing.weights
    padded = weights.new_zeros(ids.shape[0], num_experts + 1)
    return padded.scatter_add(1, ids.masked_fill(ids < 0, num_experts), weights)[:, :num_experts]


def squared_variation(values_E: Tensor) -> Tensor:
    """Variance over the square of the mean, of the whole population; 0 where all are 0."""
    mean = values_E.mean()
    tiny = torch.finfo(values_E.dtype).tiny
    return (values_E - mean).square().mean() / mean.square().clamp(min=tiny)
