"""MXFP8 weights as their kernels read them: the codes as they lie, and the scales as words beside them.

E experts, N output columns (gate and up of gemm1 as they lie), K reduced, J words, ceil(K / 128). A scale byte becomes
relative to the largest of its column, which has 127, so that a factor is a shift away in float32 and in BF16;
``column_scale`` is what is left to multiply the sum by. A column with a NaN, whose every sum is NaN, has it there.
Blocks more than 126 powers of two below their column's largest count as 2^-127 of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.formats import Quantised
from kernels.formats.elements import from_e4m3, from_e8m0
from kernels.grouped_gemm.packed import PackedWeights

TOP_BYTE = 127
ALIGNMENT = 32
"""A row of codes that is no multiple of this is padded by zeros, as only aligned rows are copied asynchronously."""


def pack_mxfp8(q: Quantised, *, gated: bool = False) -> PackedWeights:
    """``words`` uint8 [E, N, K padded], the codes themselves where they need no padding; ``scales`` int32 [E, N, J],
    the byte of a 128's first 32 lowest; ``column_scale`` float32 [E, N]."""
    num_experts, columns, k_size = q.shape
    parts = 2 if gated else 1
    pieces = [_scale_words(q.expert(e)) for e in range(num_experts)]
    scales, column_scale = (torch.stack(piece) for piece in zip(*pieces, strict=True))
    short = -k_size % ALIGNMENT
    words = F.pad(q.data, (0, short)) if short else q.data.contiguous()
    return PackedWeights(q.format, (num_experts, parts, columns // parts, k_size), words, scales, column_scale, q.data)


def _scale_words(q: Quantised) -> tuple[Tensor, Tensor]:
    known = torch.where(q.scale == 255, 0, q.scale.to(torch.int32))
    largest = known.amax(-1, keepdim=True)
    moved = (known - largest + TOP_BYTE).clamp(min=0)
    column_scale = from_e8m0(largest[..., 0].to(torch.uint8)).float()
    has_nan = (q.scale == 255).any(-1) | ((q.data & 0x7F) == 0x7F).any(-1)
    words = F.pad(moved, (0, -moved.shape[-1] % 4)).to(torch.uint8).contiguous().view(torch.int32)
    return words, torch.where(has_nan, float("nan"), column_scale)


def unpack_mxfp8(packed: PackedWeights) -> Tensor:
    """float32 [E, N, K] of the packed form: the torch twin of the decoding inside the kernels."""
    k_size = packed.shape[-1]
    bytes_ENB = packed.scales.contiguous().view(torch.uint8)[..., : (k_size + 31) // 32]
    spread = from_e8m0(bytes_ENB).float().repeat_interleave(32, -1)[..., :k_size]
    return from_e4m3(packed.words[..., :k_size]) * spread * packed.column_scale[..., None]
