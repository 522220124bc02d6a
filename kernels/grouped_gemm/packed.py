"""FP4 weights rearranged once for streaming: what a thread loads in one piece is what it multiplies.

E experts, G parts of an output column (gate and up of gemm1, one of gemm2), N columns of a part, K reduced.

The weights are cut into tiles of 64 columns by 128 of K that lie whole in memory. A 16-bit word j of a column holds the
four codes of K = j, 32 + j, 64 + j, 96 + j of the tile, with their bits where a shift or two and a mask make BF16 of
them: field 0 has its sign in bit 15 and its magnitude in bits 8-6 and is BF16 times 2^-126 as it lies; field 1 sign 12,
magnitude 5-3; field 2 sign 13, magnitude 2-0; field 3 sign 14, magnitude 11-9.

A scale byte becomes BF16 by a shift and an addition, and undoes the 2^-126: MXFP4 the exponent, 253 for the largest
scale of the column, NVFP4 five bits of exponent and three of mantissa. ``column_scale`` is what is left to multiply
the sum by. A block whose scale is NaN has codes of zero and the scale infinity, so that its sums are NaN.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.formats import Quantised
from kernels.formats.elements import from_e4m3, from_e8m0, unpack_nibbles

TILE_N, TILE_K = 64, 128
FORMATS = ("mxfp4", "nvfp4")
TOP_EXPONENT = 253
NVFP4_STEP = 7
_FIELDS = ((15, 6), (12, 3), (13, 0), (14, 9))


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """``words`` int16 [E, G, N/64, K/128, 64, 32]; ``scales`` int32 [E, G, N/64, K/128, 64, S], a byte for each of the
    four fields, S 1 for MXFP4 and 2 (first and second 16 of K) for NVFP4; ``column_scale`` float32 [E, G, N padded].
    ``source`` is the tensor of codes they were made from: beside any other one they are out of date.
    """

    format: str
    shape: tuple[int, int, int, int]
    words: Tensor
    scales: Tensor
    column_scale: Tensor
    source: Tensor


def pack_weights(q: Quantised, *, gated: bool = False, interleaved: bool = False) -> PackedWeights:
    """The packed form of MXFP4 or NVFP4 weights [E, N, K]; ``gated`` sets gate and up columns apart.

    Raises ValueError for another format.
    """
    if q.format not in FORMATS:
        raise ValueError(f"pack_weights: {q.format} is not packed; known: {', '.join(FORMATS)}")
    num_experts, columns, k_size = q.shape
    parts = 2 if gated else 1
    pieces = [_pack_expert(q.expert(e), parts, interleaved) for e in range(num_experts)]
    words, scales, column_scale = (torch.stack(piece) for piece in zip(*pieces, strict=True))
    return PackedWeights(q.format, (num_experts, parts, columns // parts, k_size), words, scales, column_scale, q.data)


def _pack_expert(q: Quantised, parts: int, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
    codes = unpack_nibbles(q.data, 2 * q.data.shape[-1])
    per_scale = 32 if q.format == "mxfp4" else 16
    scale, rest = _mxfp4_scale(q.scale) if q.format == "mxfp4" else _nvfp4_scale(q.scale, q.global_scale)
    # NaN scales, and NVFP4 scales of zero, are told by codes of zero.
    empty = (q.scale == 255) if q.format == "mxfp4" else (q.scale & 0x7F) % 0x7F == 0
    zero = empty.repeat_interleave(per_scale, -1)[:, : codes.shape[-1]]
    codes = torch.where(zero, 0, codes.to(torch.int32))
    # Padding: codes of zero, and a scale that is finite.
    codes = _tiles(_split(codes, parts, interleaved), TILE_K)
    scale = _tiles(_split(scale.to(torch.int32), parts, interleaved), TILE_K // per_scale)
    rest = _split(rest[:, None], parts, interleaved)[..., 0]
    rest = F.pad(rest, (0, -rest.shape[-1] % TILE_N), value=1.0)
    return _words(codes), _scale_words(scale, per_scale), rest


def _split(x: Tensor, parts: int, interleaved: bool) -> Tensor:
    """[N, K] -> [G, N / G, K]."""
    if interleaved and parts > 1:
        return x.unflatten(0, (-1, parts)).transpose(0, 1)
    return x.unflatten(0, (parts, -1))


def _tiles(x: Tensor, tile_k: int) -> Tensor:
    """[G, N, K] -> [G, N/64, K/tile, 64, tile], zeros in the tails."""
    x = F.pad(x, (0, -x.shape[-1] % tile_k, 0, -x.shape[-2] % TILE_N))
    return x.unflatten(-1, (-1, tile_k)).unflatten(1, (-1, TILE_N)).transpose(2, 3)


def _words(codes: Tensor) -> Tensor:
    fields = codes.unflatten(-1, (4, 32)).unbind(-2)
    word = sum(((code >> 3) << sign) | ((code & 7) << low) for code, (sign, low) in zip(fields, _FIELDS, strict=True))
    return _wrap(word, 16).to(torch.int16).contiguous()


def _scale_words(scale: Tensor, per_scale: int) -> Tensor:
    """[..., 64, 4 * S] bytes -> [..., 64, S] words: byte p belongs to field p."""
    halves = scale.long().unflatten(-1, (4, 32 // per_scale))
    word = sum(halves[..., p, :] << (8 * p) for p in range(4))
    return _wrap(word, 32).to(torch.int32).contiguous()


def _wrap(word: Tensor, bits: int) -> Tensor:
    return torch.where(word >= 1 << (bits - 1), word - (1 << bits), word)


def _mxfp4_scale(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes relative to the column's largest, and 2^(largest - 127)."""
    known = torch.where(scale == 255, 0, scale.to(torch.int32))
    largest = known.amax(-1, keepdim=True)
    moved = (known - largest + TOP_EXPONENT).clamp(min=0)
    return torch.where(scale == 255, 255, moved), from_e8m0(largest[..., 0].to(torch.uint8)).float()


def _nvfp4_scale(scale: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Bits of scale * 2^119 as BF16 without the highest exponent bits, and 2^7 / global scale."""
    value = from_e4m3(scale & 0x7F).nan_to_num(nan=0.0).clamp(min=2.0**-9)
    bits = (value * 2.0**119).to(torch.bfloat16).view(torch.int16).to(torch.int32)
    moved = (bits >> 4) - (224 << 3)
    rest = (2.0**NVFP4_STEP / global_scale.float()).expand(scale.shape[0])
    return torch.where((scale & 0x7F) == 0x7F, 0xF8, moved), rest


def unpack_weights(packed: PackedWeights) -> Tensor:
    """float32 [E, G, N, K] of the packed form: the torch twin of the decoding inside the kernel."""
    _, _, n_size, k_size = packed.shape
    word = packed.words.to(torch.int32) & 0xFFFF
    bits = [
        word & 0x81C0,
        (word << 3) & 0x81C0,
        ((word << 6) & 0x01C0) | ((word << 2) & 0x8000),
        ((word >> 3) & 0x01C0) | ((word << 1) & 0x8000),
    ]
    half = torch.arange(32, device=word.device) // (32 // packed.scales.shape[-1])
    fields = []
    for p, field in enumerate(bits):
        byte = (packed.scales >> (8 * p)) & 0xFF
        factor = (byte << 7) if packed.format == "mxfp4" else (byte << 4) + (224 << 7)
        fields.append(_bf16(field).double() * _bf16(factor).double()[..., half])
    values = torch.stack(fields, -2).flatten(-2)
    values = values.transpose(3, 4).flatten(-2).flatten(2, 3) * packed.column_scale.double()[..., None]
    return values[:, :, :n_size, :k_size].float()


def _bf16(bits: Tensor) -> Tensor:
    return _wrap(bits, 16).to(torch.int16).view(torch.bfloat16)
