"""Element codes and block scales inside Triton kernels, in float32 and int32 alone: no GPU needs FP8 hardware for them.

Torch twins: ``elements`` (codes) and ``scales`` (scales), equal to the bit, the sign of NaN included. Rounding adds and
takes away a number whose last place is the element's step, so float32's own rounding to nearest even is the rounding;
neither step can be merged into another operation with a different result. Triton's casts to FP8 are not used: its
interpreter truncates, and sm_80 has none.
"""

import triton
import triton.language as tl

INFINITY_BITS = tl.constexpr(0x7F800000)
MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
SUBNORMAL_2_TO_MINUS_127 = tl.constexpr(0x00400000)


@triton.jit
def widen_bits(raw, kind: tl.constexpr):
    """The bits of a ``bf16``, ``f16`` or ``f32`` seen as integers -> the bits of the same value in float32, as int32.

    A cast would let the GPU choose the sign of NaN. Example: bf16 C040 hex (-3) gives C0400000 hex.
    """
    bits = raw.to(tl.int32)
    if kind == "bf16":
        bits = bits << 16
    elif kind == "f16":
        value = raw.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
        bits = (value & 0x7FFFFFFF) | (bits & -0x80000000)
    return bits


@triton.jit
def magnitude_codes(magnitude, largest: tl.constexpr, mantissa_bits: tl.constexpr, exponent_bias: tl.constexpr):
    """float32 >= 0 -> codes without sign, those beyond the largest finite value still counting up.

    Example, E4M3 (448, 3, 7): 1.0625, a tie, gives 38 hex (1.0), and 465 gives 7F hex.
    """
    shift: tl.constexpr = 23 - mantissa_bits
    step_of_one: tl.constexpr = 1.5 * 2**shift
    least_normal: tl.constexpr = 2.0 ** (1 - exponent_bias)
    rebias: tl.constexpr = 2.0 ** (exponent_bias - 127)
    clipped = tl.minimum(magnitude, 2 * largest)
    power = (clipped.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    magic = tl.maximum(power, least_normal) * step_of_one
    rounded = (clipped + magic) - magic
    return (rounded * rebias).to(tl.int32, bitcast=True) >> shift


@triton.jit
def element_codes(scaled, negative, element: tl.constexpr, overflow: tl.constexpr):
    """float32 -> int32 codes of ``e4m3``, ``e5m2`` or ``e2m1``; ``negative`` (0 or 1) is the sign to give.

    Twins: ``elements.to_e4m3``, ``to_e5m2``, ``to_e2m1``. Example: -6.0 and 1 give F in E2M1, CC hex in E4M3.
    """
    nan = scaled != scaled
    magnitude = tl.abs(scaled)
    if element == "e2m1":
        code = tl.minimum(magnitude_codes(magnitude, 6.0, 1, 1), 7)
        code = tl.where(nan, (1 - negative) << 3, code | (negative << 3))
    elif element == "e4m3":
        code = magnitude_codes(magnitude, 448.0, 3, 7)
        code = tl.where(code > 0x7E, 0x7F if overflow == "nan" else 0x7E, code)
        code = tl.where(nan, 0x7F, code) | (negative << 7)
    else:
        code = magnitude_codes(magnitude, 57344.0, 2, 15)
        code = tl.where(code > 0x7B, 0x7C if overflow == "nan" else 0x7B, code)
        code = tl.where(nan, 0x7E, code) | (negative << 7)
    return code


@triton.jit
def divide(numerator, denominator):
    """float32 quotient rounded to nearest; the denominator broadcasts, and may be a number."""
    return tl.math.div_rn(numerator, tl.zeros_like(numerator) + denominator)


@triton.jit
def scale_byte(amax_bits, element: tl.constexpr, rule: tl.constexpr):
    """Bits of the float32 amax of blocks (NaN allowed) -> E8M0 bytes as int32; twin: ``scales.power_of_two_scale``.

    Example, E2M1: amax 7 (40E00000 hex) gives 127 by ``floor`` and 128 by ``ceil`` and ``even``.
    """
    emax: tl.constexpr = 2 if element == "e2m1" else (8 if element == "e4m3" else 15)
    # The mantissa of the largest value: 1.5 in E2M1, 1.75 in both FP8.
    fraction: tl.constexpr = 0x400000 if element == "e2m1" else 0x600000
    half_unit: tl.constexpr = 0x200000 if element == "e2m1" else (0x80000 if element == "e4m3" else 0x100000)
    steps = amax_bits >> 23
    if rule == "ceil":
        steps += ((amax_bits & 0x7FFFFF) > fraction).to(tl.int32)
        steps = tl.where(amax_bits == INFINITY_BITS, 254 + emax, steps)
    elif rule == "even":
        steps = tl.where(amax_bits == INFINITY_BITS, steps, (amax_bits + half_unit) >> 23)
    byte = tl.minimum(tl.maximum(steps - emax, 0), 254)
    return tl.where(amax_bits > INFINITY_BITS, 255, byte)


@triton.jit
def byte_reciprocal(byte):
    """2^(127 - byte) for the E8M0 bytes 0..254, NaN for 255: multiplying by it is the exact division by the scale."""
    bits = tl.where(byte == 254, SUBNORMAL_2_TO_MINUS_127, (254 - byte) << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def fp8_scale(amax_bits, element: tl.constexpr, rule: tl.constexpr, infinity: tl.constexpr):
    """Bits of amax without NaN -> (float32 scale to store, float32 divisor or exact multiplier of the values).

    ``infinity`` stands for an infinite amax: the largest value of the input's dtype. Twin: ``fp8.encode_fp8``.
    Example, E4M3: amax 896 gives the scale 2; the factor is the divisor 2 (``none``) or the multiplier 0.5 (``ceil``).
    """
    amax = tl.minimum(amax_bits.to(tl.float32, bitcast=True), infinity)
    amax = tl.maximum(amax, 1e-30)
    if rule == "ceil":
        byte = scale_byte(amax.to(tl.int32, bitcast=True), element, "ceil")
        scale, factor = (byte << 23).to(tl.float32, bitcast=True), byte_reciprocal(byte)
    else:
        scale = divide(amax, 448.0 if element == "e4m3" else 57344.0)
        factor = scale
    return scale, factor


@triton.jit
def fp8_codes(bits, factor, element: tl.constexpr, rule: tl.constexpr, overflow: tl.constexpr):
    """Codes of the values with these float32 bits; ``factor`` is the second result of ``fp8_scale``, broadcastable."""
    value = bits.to(tl.float32, bitcast=True)
    scaled = value * factor if rule == "ceil" else divide(value, factor)
    return element_codes(scaled, (bits >> 31) & 1, element, overflow)


@triton.jit
def known_magnitude(bits):
    """The bits of |x|, and 0 for NaN, which amax passes over."""
    magnitude = bits & MAGNITUDE_BITS
    return tl.where(magnitude > INFINITY_BITS, 0, magnitude)


@triton.jit
def quotient_sign(bits, scaled):
    """Sign (0 or 1) of the value with these bits over a scale: a number over a NaN scale is that NaN, positive."""
    value = bits.to(tl.float32, bitcast=True)
    return tl.where((scaled != scaled) & (value == value), 0, (bits >> 31) & 1)


@triton.jit
def nvfp4_scale(amax_bits, global_scale):
    """Bits of amax (NaN allowed) -> (E4M3 code of the block's scale as int32, the float32 step that values divide by).

    Twin: ``nvfp4.encode_nvfp4``. Example: amax 6 with the global scale 448 gives 7E hex (448) and the step 1.
    """
    amax = amax_bits.to(tl.float32, bitcast=True)
    amax = tl.where(amax_bits == INFINITY_BITS, 3.4028234663852886e38, amax)
    wanted = divide(amax, 6.0) * global_scale
    # Not tl.maximum, which would drop NaN.
    wanted = tl.where(wanted < 0.001953125, 0.001953125, wanted)
    code = element_codes(wanted, tl.zeros_like(amax_bits), "e4m3", "saturate")
    value = (code << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    return code, tl.where(code == 0x7F, float("nan"), divide(value, global_scale))
