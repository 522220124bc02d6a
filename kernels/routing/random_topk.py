"""Experts drawn uniformly without replacement, whatever the logits say."""

import torch
from torch import Tensor

from kernels.routing.base import ROWS_A_PART, Routing, check_logits
from kernels.routing.select import top_k_ids


def random_topk(logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, seed: int) -> Routing:
    """K distinct experts a token, each with weight 1/K. Only the shape and the device of the logits matter.

    The draw is made on the CPU, so that a seed gives the same experts on every device.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.rand(tuple(part.shape), generator=generator) for part in logits_TE.split(ROWS_A_PART))
    ids = torch.cat([top_k_ids(draw, top_k) for draw in draws]).to(torch.int32)
    weights = torch.full(ids.shape, 1.0 / top_k)
    return Routing(ids.to(logits_TE.device), weights.to(logits_TE.device))
