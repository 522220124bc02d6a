"""Experts drawn uniformly without replacement, whatever the logits say."""

import torch
from torch import Tensor

from kernels.routing.base import Routing, check_logits
from kernels.routing.draws import uniform_bits
from kernels.routing.select import top_k_ids


def random_topk(
    logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, seed: int, backend: str = "auto"
) -> Routing:
    """K distinct experts a token, each with weight 1/K. Only the shape and the device of the logits matter.

    A seed gives the same experts on every device.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    draws = uniform_bits(*logits_TE.shape, seed=seed, device=logits_TE.device)
    return even_weights(top_k_ids(draws, top_k))


def even_weights(ids_TK: Tensor) -> Routing:
    """Weight 1/K for each of the ids."""
    return Routing(ids_TK.to(torch.int32), torch.full(ids_TK.shape, 1.0 / ids_TK.shape[1], device=ids_TK.device))
