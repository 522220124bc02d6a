"""bfloat16 as a format: the identity for bfloat16 input, one rounding for others. No scales."""

import torch
from torch import Tensor

from kernels.formats.base import Format, Quantised, check_request


def encode_bf16(x: Tensor, *, weights: bool = False, scale_rule: str = "none", overflow: str = "saturate") -> Quantised:
    """Encode [..., N, K]; bfloat16 has float32's range, so ``overflow`` and ``weights`` change nothing."""
    check_request(x, "bf16", scale_rule=scale_rule, scale_rules=("none",), overflow=overflow)
    return Quantised("bf16", tuple(x.shape), x.to(torch.bfloat16), None, None, scale_rule, overflow)


def decode_bf16(q: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``q.shape`` in ``dtype``; no copy for bfloat16."""
    return q.data.to(dtype)


FORMATS = {"bf16": Format("bf16", encode_bf16, decode_bf16, 0.002, 16)}
