"""NVFP4: E2M1 in blocks of 16 along K, an E4M3 scale a block, and a float32 scale a matrix.

Encode: global_scale = 448 * 6 / amax(matrix); block scale = E4M3(amax(block) / 6 * global_scale), at least 2^-9 (its
least positive value, so that a small block still divides); code = E2M1(x / (block scale / global_scale)).
Decode: value = code * (block scale / global_scale), in float32. The stored ``global_scale`` is thus the multiplier of
the encoder (compressed-tensors' convention), the reciprocal of the one ModelOpt and torchao store.

amax is at least ``scales.AMAX_FLOOR``, so an all-zero matrix has a finite global scale and restores to zeros. A NaN
makes its own block's scale NaN, and no other's.
``data`` is uint8 [..., N, ceil(K/2)]; ``scale`` is uint8 E4M3 codes [..., N, ceil(K/16)]; ``global_scale`` is [...].
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.formats.base import Format, Quantised, check_request, decode_parts, encode_parts, refuse_nan_overflow
from kernels.formats.elements import E2M1, E4M3, from_e4m3, pack_nibbles, to_e2m1, to_e4m3, unpack_e2m1
from kernels.formats.scales import AMAX_FLOOR, to_blocks, true_divide

BLOCK = 16
LEAST_SCALE = 2.0**-9


def encode_nvfp4(
    x: Tensor, *, weights: bool = False, scale_rule: str = "none", overflow: str = "saturate"
) -> Quantised:
    """Encode [..., N, K]; ``weights`` changes nothing. Raises ValueError for a bad shape, dtype or option."""
    check_request(x, "nvfp4", scale_rule=scale_rule, scale_rules=("none",), overflow=overflow)
    refuse_nan_overflow("nvfp4", overflow)
    columns = x.shape[-1]

    def encode(part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = to_blocks(part, 1, BLOCK).squeeze(-3)
        amax = blocks.abs().amax(-1).float().clamp(max=torch.finfo(torch.float32).max)
        global_scale = true_divide(E4M3.largest * E2M1.largest, _matrix_amax(amax))
        wanted = true_divide(amax, E2M1.largest) * global_scale[..., None, None]
        scale = to_e4m3(wanted.clamp(min=LEAST_SCALE))
        step = from_e4m3(scale) / global_scale[..., None, None]
        scaled = (blocks.float() / step.unsqueeze(-1)).flatten(-2)[..., :columns]
        return pack_nibbles(to_e2m1(scaled)), scale, global_scale

    data, scale, global_scale = encode_parts(x, encode)
    return Quantised("nvfp4", tuple(x.shape), data, scale, global_scale, scale_rule, overflow)


def decode_nvfp4(q: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``q.shape`` in ``dtype``: the float32 product, rounded once to ``dtype``."""
    columns = q.shape[-1]

    def decode(data: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
        step = from_e4m3(scale) / global_scale[..., None, None]
        values = unpack_e2m1(data, 2 * data.shape[-1])
        values = F.pad(values, (0, scale.shape[-1] * BLOCK - values.shape[-1]))
        return (values.unflatten(-1, (scale.shape[-1], BLOCK)) * step.unsqueeze(-1)).flatten(-2)[..., :columns]

    return decode_parts(q, decode, dtype)


def _matrix_amax(block_amax: Tensor) -> Tensor:
    """[..., N, blocks] -> [...]: the largest magnitude of each matrix, NaN blocks passed over."""
    if not block_amax.numel():
        return block_amax.new_full(block_amax.shape[:-2], AMAX_FLOOR)
    return block_amax.nan_to_num(nan=0.0).amax((-2, -1)).clamp(min=AMAX_FLOOR)


FORMATS = {"nvfp4": Format("nvfp4", encode_nvfp4, decode_nvfp4, 0.11, 4)}
