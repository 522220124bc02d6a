"""Experts drawn uniformly without replacement, whatever the logits say."""

import torch
from torch import Tensor

from kernels.routing.base import Routing, check_logits
from kernels.routing.select import top_k_ids


def random_topk(logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, seed: int) -> Routing:
    """K distinct experts a token, each with weight 1/K. Only the shape and the device of the logits matter.

    The draw is made on the CPU, so that a seed gives the same experts on every device.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    generator = torch.Generator().manual_seed(seed)
    ids = top_k_ids(torch.rand(tuple(logits_TE.shape), generator=generator), top_k).to(torch.int32)
    weights = torch.full(ids.shape, 1.0 / top_k)
    return Routing(ids.to(logits_TE.device), weights.to(logits_TE.device))
