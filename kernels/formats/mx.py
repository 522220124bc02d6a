"""Microscaling formats MXFP8 (E4M3) and MXFP4 (E2M1): blocks of 32 along K with one E8M0 scale byte each.

Encode: byte from the block's largest magnitude by the named rule (``scales.power_of_two_scale``), then
code = cast(x / 2^(byte - 127)); the division is exact. Decode: value = code * 2^(byte - 127).
A NaN anywhere in a block gives it the byte 255, and the whole block restores to NaN.

``scale`` is uint8 [..., N, ceil(K/32)]; ``data`` is uint8 [..., N, K] (MXFP8) or [..., N, ceil(K/2)] (MXFP4).
Source: OCP Microscaling formats (MX) 1.0.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.formats.base import (
    Format,
    Quantised,
    check_request,
    decode_parts,
    encode_parts,
    fused_on,
    refuse_nan_overflow,
)
from kernels.formats.elements import (
    E2M1,
    E4M3,
    from_e4m3,
    from_e8m0,
    pack_nibbles,
    to_e2m1,
    to_e4m3,
    unpack_e2m1,
)
from kernels.formats.scales import power_of_two_scale, to_blocks

BLOCK = 32
SCALE_RULES = ("floor", "ceil", "even")


def encode_mx(
    x: Tensor, *, name: str, weights: bool = False, scale_rule: str = "floor", overflow: str = "saturate"
) -> Quantised:
    """Encode [..., N, K]; ``weights`` changes nothing. Raises ValueError for a bad shape, dtype or option."""
    check_request(x, name, scale_rule=scale_rule, scale_rules=SCALE_RULES, overflow=overflow)
    if name == "mxfp4":
        refuse_nan_overflow(name, overflow)
    if fused_on(x):
        from kernels.formats.triton_encode import triton_encode_mx as fused

        data, scale = fused(x, name=name, scale_rule=scale_rule, overflow=overflow)
    else:
        encode = partial(_encode_matrices, name=name, scale_rule=scale_rule, overflow=overflow)
        data, scale = encode_parts(x, encode, rows_alone=True)
    return Quantised(name, tuple(x.shape), data, scale, None, scale_rule, overflow)


def _encode_matrices(x: Tensor, *, name: str, scale_rule: str, overflow: str) -> tuple[Tensor, Tensor]:
    """Codes and bytes of matrices [..., N, K] in torch, the twin of ``triton_encode.triton_encode_mx``."""
    element = E2M1 if name == "mxfp4" else E4M3
    blocks = to_blocks(x, 1, BLOCK).squeeze(-3).float()
    scale = power_of_two_scale(blocks.abs().amax(-1), element, scale_rule)
    scaled = (blocks / from_e8m0(scale).unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]]
    codes = pack_nibbles(to_e2m1(scaled)) if name == "mxfp4" else to_e4m3(scaled, overflow).contiguous()
    return codes, scale


def decode_mx(q: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``q.shape`` in ``dtype``. A code times a power of two is exact in bfloat16, so no float32 is needed."""
    columns = q.shape[-1]
    compute = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32

    def decode(data: Tensor, scale: Tensor, _: Tensor | None) -> Tensor:
        packed = q.format == "mxfp4"
        values = unpack_e2m1(data, 2 * data.shape[-1], compute) if packed else from_e4m3(data, compute)
        values = F.pad(values, (0, scale.shape[-1] * BLOCK - values.shape[-1]))
        spread = values.unflatten(-1, (scale.shape[-1], BLOCK)) * from_e8m0(scale, compute).unsqueeze(-1)
        return spread.flatten(-2)[..., :columns]

    return decode_parts(q, decode, dtype, rows_alone=True)


FORMATS = {
    "mxfp8": Format("mxfp8", partial(encode_mx, name="mxfp8"), decode_mx, 0.033, 8, SCALE_RULES),
    "mxfp4": Format("mxfp4", partial(encode_mx, name="mxfp4"), decode_mx, 0.15, 4, SCALE_RULES),
}
