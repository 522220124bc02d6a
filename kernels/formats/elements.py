"""Casts of single elements: float32 to the codes of E4M3FN, E5M2 and E2M1 and back, and E8M0 scale bytes.

Every cast rounds once, to nearest with ties to even, straight from float32, and tests for overflow after rounding.
``overflow`` says what becomes of a value that rounds out of range: ``saturate`` gives the largest finite value
(infinities too), ``nan`` gives what the format has instead: NaN in E4M3FN, infinity in E5M2. NaN stays NaN.

Where a look-up is quicker than torch's cast, tables of all 65,536 halves of a float32, or pairs of codes, are made on
first use by the casts that they stand for.
Sources: OCP 8-bit floating point 1.0; OCP Microscaling formats (MX) 1.0.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Element:
    """A narrow float: its largest finite value and its stored mantissa bits."""

    largest: float
    mantissa_bits: int


E4M3 = Element(448.0, 3)
E5M2 = Element(57344.0, 2)
E2M1 = Element(6.0, 1)
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_NAN = 255

# The first values that round out of range: 464 is a tie that goes to 448 (even), 61440 a tie that leaves the range.
_E4M3_LAST_IN_RANGE = 464.0
_E5M2_FIRST_OUT = 61440.0


def to_e4m3(x: Tensor, overflow: str = "saturate") -> Tensor:
    """float -> uint8 codes of E4M3FN, same shape."""
    x = _widen(x)
    # torch 2.11 turns what lies beyond the range into NaN and torch 2.13 saturates: clamped, both agree.
    codes = x.clamp(-E4M3.largest, E4M3.largest).to(torch.float8_e4m3fn).view(torch.uint8)
    if overflow == "nan":
        codes = torch.where(x.abs() > _E4M3_LAST_IN_RANGE, codes | 0x7F, codes)
    return codes


def from_e4m3(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 codes of E4M3FN -> values, exact in float32, bfloat16 and float16."""
    return _from_fp8(codes, torch.float8_e4m3fn, dtype)


def to_e5m2(x: Tensor, overflow: str = "saturate") -> Tensor:
    """float -> uint8 codes of E5M2, same shape; NaN becomes the quiet NaN 7E with its sign."""
    return _look_up(x, _e5m2_codes(x.device, overflow))


def from_e5m2(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 codes of E5M2 -> values, exact in float32, bfloat16 and float16."""
    return _from_fp8(codes, torch.float8_e5m2, dtype)


def to_e2m1(x: Tensor) -> Tensor:
    """float -> uint8 codes 0..15 of E2M1 (bit 3 is the sign), same shape. Saturates at 6.

    E2M1 has no NaN: NaN becomes a zero of the opposite sign, as in ml_dtypes. A block format marks it in the scale.
    """
    return _look_up(x, _e2m1_codes(x.device))


def from_e2m1(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 codes 0..15 -> values, exact in every floating dtype."""
    return _e2m1_values(codes.device, dtype)[codes.int()]


def from_e8m0(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale bytes -> 2^(byte - 127). Byte 0 is 2^-127 (a float32 subnormal), byte 255 is NaN; there is no zero."""
    bits = codes.int() << 23
    bits = torch.where(codes == 0, 0x00400000, bits)
    bits = torch.where(codes == E8M0_NAN, 0x7FC00000, bits)
    return bits.view(torch.float32).to(dtype)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes a byte along the last dimension: [..., K] -> uint8 [..., ceil(K/2)].

    The packing order of the whole project: the low nibble holds the even index, the high nibble the odd one, as in
    OCP MX and NVFP4. ``[1.0, -6.0]`` (codes 2 and 15) packs to F2 hex. An odd K leaves the last high nibble 0.
    """
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    if codes.is_contiguous() and codes.storage_offset() % 2 == 0:
        pairs = codes.view(torch.int16)
        return (pairs | (pairs >> 4)).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor, columns: int) -> Tensor:
    """The inverse of ``pack_nibbles``: uint8 [..., ceil(K/2)] -> codes 0..15 [..., K = columns]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)[..., :columns]


def unpack_e2m1(packed: Tensor, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Packed E2M1 -> values [..., K = columns] in float32 or bfloat16, one table look-up a byte."""
    pairs = _e2m1_pairs(packed.device, dtype).index_select(0, packed.reshape(-1).int())
    return pairs.view(dtype).view(*packed.shape[:-1], 2 * packed.shape[-1])[..., :columns]


def _widen(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise ValueError("cast from float64 would round twice: give float32, bfloat16 or float16")
    return x.float()


def _look_up(x: Tensor, table: Tensor) -> Tensor:
    """``table[top 16 bits of x]``, with the bits that are cut off, if any is set, seen in the lowest that stays.

    No value and no midpoint of the narrow formats needs that lowest bit, so it decides only which side of one x is on.
    """
    if x.dtype == torch.bfloat16:
        index = x.contiguous().view(torch.int16).int() & 0xFFFF
    else:
        bits = _widen(x).contiguous().view(torch.int32)
        index = (bits & 0xFFFF).add_(0xFFFF).bitwise_or_(bits).bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    return table.index_select(0, index.view(-1)).view(x.shape)


def _from_fp8(codes: Tensor, element: torch.dtype, dtype: torch.dtype) -> Tensor:
    """torch's cast, or on a CPU a look-up of two codes at once, which is several times as fast."""
    even = codes.numel() % 2 == 0 and codes.storage_offset() % 2 == 0
    if codes.device.type != "cpu" or dtype not in _PAIR or not (even and codes.is_contiguous()):
        return codes.view(element).to(dtype)
    index = codes.view(-1).view(torch.uint16).to(torch.int32)
    return _fp8_pairs(element, dtype).index_select(0, index).view(dtype).view(codes.shape)


_PAIR = {torch.float32: torch.int64, torch.bfloat16: torch.int32, torch.float16: torch.int32}
"""The integer that holds two values of a dtype, so that a look-up moves both at once."""


@lru_cache
def _fp8_pairs(element: torch.dtype, dtype: torch.dtype) -> Tensor:
    codes = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.uint8)
    return codes.view(element).to(dtype).view(_PAIR[dtype])


def _halves() -> Tensor:
    """What the top 16 bits of a float32 can be, as float32."""
    return (torch.arange(65536, dtype=torch.int32) << 16).view(torch.float32)


@lru_cache
def _e5m2_codes(device: torch.device, overflow: str) -> Tensor:
    x = _halves()
    codes = x.clamp(-E5M2.largest, E5M2.largest).to(torch.float8_e5m2).view(torch.uint8)
    codes = torch.where(x.isnan(), (codes & 0x80) | 0x7E, codes)
    if overflow == "nan":
        codes = torch.where(x.abs() >= _E5M2_FIRST_OUT, (codes & 0x80) | 0x7C, codes)
    return codes.to(device)


@lru_cache
def _e2m1_codes(device: torch.device) -> Tensor:
    x = _halves()
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1_VALUES)])
    # The largest value that still rounds to code i: a tie goes to the even code.
    last = torch.where(torch.arange(7) % 2 == 0, middles, middles.nextafter(torch.zeros(())))
    magnitude = torch.bucketize(x.abs(), last).to(torch.uint8)
    magnitude = magnitude.masked_fill_(x.isnan(), 0)
    return magnitude.bitwise_or_((x.signbit() ^ x.isnan()).to(torch.uint8) << 3).to(device)


@lru_cache
def _e2m1_values(device: torch.device, dtype: torch.dtype) -> Tensor:
    magnitudes = torch.tensor(E2M1_VALUES)
    return torch.cat((magnitudes, -magnitudes)).to(device, dtype)


@lru_cache
def _e2m1_pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """For each byte its two values."""
    byte = torch.arange(256, dtype=torch.uint8)
    pairs = from_e2m1(unpack_nibbles(byte[:, None], 2), dtype)
    return pairs.contiguous().view(_PAIR[dtype]).view(256).to(device)
