"""Experts drawn uniformly without replacement, whatever the logits say."""

import torch
from torch import Tensor

from kernels.routing.base import ROWS_A_PART, Routing, check_logits
from kernels.routing.draws import uniform_bits
from kernels.routing.select import top_k_ids


def random_topk(
    logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, seed: int, backend: str = "auto"
) -> Routing:
    """K distinct experts a token, each with weight 1/K. Only the shape and the device of the logits matter.

    A seed gives the same experts on every device.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    num_tokens, num_experts = logits_TE.shape
    device, step = logits_TE.device, ROWS_A_PART if logits_TE.device.type == "cpu" else max(1, num_tokens)
    parts = [
        uniform_bits(min(step, num_tokens - row), num_experts, seed=seed, device=device, first_row=row)
        for row in range(0, max(1, num_tokens), step)
    ]
    return even_weights(torch.cat([top_k_ids(part, top_k) for part in parts]))


def even_weights(ids_TK: Tensor) -> Routing:
    """Weight 1/K for each of the ids."""
    return Routing(ids_TK.to(torch.int32), torch.full(ids_TK.shape, 1.0 / ids_TK.shape[1], device=ids_TK.device))
