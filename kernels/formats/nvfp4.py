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

from kernels.formats.base import (
    Format,
    Quantised,
    check_request,
    decode_parts,
    fused_on,
    refuse_nan_overflow,
    stack_parts,
)
from kernels.formats.elements import E2M1, E4M3, from_e4m3, pack_nibbles, to_e2m1, to_e4m3, unpack_e2m1
from kernels.formats.scales import AMAX_FLOOR, to_blocks, true_divide

BLOCK = 16
LEAST_SCALE = 2.0**-9


def encode_nvfp4(
    x: Tensor,
    *,
    weights: bool = False,
    scale_rule: str = "none",
    overflow: str = "saturate",
    global_scale: Tensor | None = None,
) -> Quantised:
    """Encode [..., N, K]; ``weights`` changes nothing. Raises ValueError for a bad shape, dtype or option.

    ``global_scale``: float32 [...], one a matrix, taken instead of the one that amax gives, as a calibrated scale of
    activations is; blocks it cannot reach saturate.
    """
    check_request(x, "nvfp4", scale_rule=scale_rule, scale_rules=("none",), overflow=overflow)
    refuse_nan_overflow("nvfp4", overflow)
    if global_scale is not None and (global_scale.shape != x.shape[:-2] or global_scale.dtype != torch.float32):
        found = f"{global_scale.dtype} {tuple(global_scale.shape)}"
        raise ValueError(f"nvfp4: global_scale must be float32 {tuple(x.shape[:-2])}, one a matrix, got {found}")
    data, scale, global_scale = (_encode_fused if fused_on(x) else _encode_parts)(x, global_scale)
    return Quantised("nvfp4", tuple(x.shape), data, scale, global_scale, scale_rule, overflow)


def _encode_fused(x: Tensor, global_scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    from kernels.formats.triton_encode import triton_encode_nvfp4, triton_matrix_amax

    if global_scale is None:
        global_scale = _global_scale(triton_matrix_amax(x, group=BLOCK))
    return *triton_encode_nvfp4(x, global_scale), global_scale


def _encode_parts(x: Tensor, global_scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    parts = stack_parts(tuple(x.shape), x.device)
    if len(parts) == 1:
        return _encode_matrices(x, global_scale)
    done = [_encode_matrices(x[part], None if global_scale is None else global_scale[part]) for part in parts]
    return tuple(torch.cat(pieces) for pieces in zip(*done, strict=True))


def _encode_matrices(x: Tensor, global_scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Codes and scales of matrices [..., N, K] in torch, the twin of ``triton_encode.triton_encode_nvfp4``."""
    blocks = to_blocks(x, 1, BLOCK).squeeze(-3).float()
    amax = blocks.abs().amax(-1).clamp(max=torch.finfo(torch.float32).max)
    if global_scale is None:
        global_scale = _global_scale(_matrix_amax(amax))
    wanted = true_divide(amax, E2M1.largest) * global_scale[..., None, None]
    scale = to_e4m3(wanted.clamp(min=LEAST_SCALE))
    step = from_e4m3(scale) / global_scale[..., None, None]
    scaled = (blocks / step.unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]]
    return pack_nibbles(to_e2m1(scaled)), scale, global_scale


def decode_nvfp4(q: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``q.shape`` in ``dtype``: the float32 product, rounded once to ``dtype``."""
    columns = q.shape[-1]

    def decode(data: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
        step = from_e4m3(scale) / global_scale[..., None, None]
        values = unpack_e2m1(data, 2 * data.shape[-1])
        values = F.pad(values, (0, scale.shape[-1] * BLOCK - values.shape[-1]))
        return (values.unflatten(-1, (scale.shape[-1], BLOCK)) * step.unsqueeze(-1)).flatten(-2)[..., :columns]

    return decode_parts(q, decode, dtype, rows_alone=True)


def _matrix_amax(block_amax: Tensor) -> Tensor:
    """[..., N, blocks] -> [...]: the largest magnitude of each matrix, NaN blocks passed over."""
    if not block_amax.numel():
        return block_amax.new_zeros(block_amax.shape[:-2])
    return block_amax.nan_to_num(nan=0.0).amax((-2, -1))


def _global_scale(amax: Tensor) -> Tensor:
    """The multiplier 448 * 6 / amax that lets the largest block scale reach 448."""
    amax = amax.clamp(min=AMAX_FLOOR, max=torch.finfo(torch.float32).max)
    return true_divide(E4M3.largest * E2M1.largest, amax)


FORMATS = {"nvfp4": Format("nvfp4", encode_nvfp4, decode_nvfp4, 0.11, 4)}
