"""Noisy top-k gating (Shazeer et al. 2017): noise on the logits selects, and enters the weights."""

import torch.nn.functional as F
from torch import Tensor

from kernels.routing.base import Routing, check_logits, finite_logits
from kernels.routing.draws import normal
from kernels.routing.topk_softmax import topk_softmax


def noisy_topk(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    noise: float = 1.0,
    noise_logits_TE: Tensor | None = None,
    seed: int = 0,
    backend: str = "auto",
) -> Routing:
    """Top-k of the noisy logits (+ bias), weights the softmax of the selected noisy logits."""
    check_logits(logits_TE, top_k=top_k, bias=bias)
    noisy = noisy_logits(logits_TE, noise=noise, noise_logits_TE=noise_logits_TE, seed=seed)
    return topk_softmax(noisy, top_k=top_k, bias=bias, backend=backend)


def noisy_logits(
    logits_TE: Tensor, *, noise: float = 1.0, noise_logits_TE: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Logits plus standard normal noise times ``noise_std``; differentiable in both logits."""
    if noise == 0:
        return logits_TE
    draw = normal(*logits_TE.shape, seed=seed, device=logits_TE.device)
    return finite_logits(logits_TE) + draw * noise_std(noise=noise, noise_logits_TE=noise_logits_TE)


def noise_std(*, noise: float = 1.0, noise_logits_TE: Tensor | None = None) -> Tensor | float:
    """Standard deviation of the noise: ``noise * softplus(noise logits)``, the second a trained gate of its own in
    the paper (equation 4); ``noise`` alone without them (Tutel's ``gate_noise`` is noise = gate_noise / E)."""
    return noise if noise_logits_TE is None else noise * F.softplus(finite_logits(noise_logits_TE))
