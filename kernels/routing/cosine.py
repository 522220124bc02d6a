"""Cosine router (Chi et al. 2022, X-MoE): experts by their angle to the token in a projected space."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.routing.base import Routing, check_logits, finite_logits
from kernels.routing.softmax_topk import softmax_topk

LEAST_TEMPERATURE = 0.01
LEAST_NORM = 1e-4


def cosine(
    logits_TE: Tensor,
    *,
    top_k: int,
    bias: Tensor | None = None,
    temperature: float = 0.5,
    norm_topk: bool = True,
    routed_scaling: float = 1.0,
    backend: str = "auto",
) -> Routing:
    """Softmax over cosines / temperature, then top-k.

    The logits are read as a token's coordinates along experts at right angles to each other, so its cosines are the
    logits over their length. With features of one's own, ``cosine_logits`` gives what ``softmax_topk`` takes.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    logits = finite_logits(logits_TE)
    known = logits.masked_fill(logits == -torch.inf, 0.0)
    largest = known.detach().abs().amax(1, keepdim=True).clamp(min=LEAST_NORM)  # squares of large logits overflow
    length = (known / largest).norm(dim=1, keepdim=True) * largest
    cosines = torch.where(logits == -torch.inf, logits, known / length.clamp(min=LEAST_NORM))
    return softmax_topk(
        cosines * _scale(temperature),
        top_k=top_k,
        bias=bias,
        norm_topk=norm_topk,
        routed_scaling=routed_scaling,
        backend=backend,
    )


def cosine_logits(
    x_TH: Tensor, projection_PH: Tensor, experts_EP: Tensor, *, temperature: Tensor | float = 0.5
) -> Tensor:
    """Logits [T, E]: cosine of the projected token and the expert's direction, over the temperature (0.01 at least).

    Differentiable in all four.
    """
    tokens_TP = F.normalize(x_TH @ projection_PH.t(), dim=1, eps=LEAST_NORM)
    directions_EP = F.normalize(experts_EP, dim=1, eps=LEAST_NORM)
    return tokens_TP @ directions_EP.t() * _scale(temperature)


def _scale(temperature: Tensor | float) -> Tensor | float:
    if isinstance(temperature, Tensor):
        return temperature.clamp(min=LEAST_TEMPERATURE).reciprocal()
    return 1.0 / max(temperature, LEAST_TEMPERATURE)
