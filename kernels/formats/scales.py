"""From the largest magnitude of a block to its scale, and the blocks themselves."""

from math import frexp

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.formats.elements import E8M0_NAN, Element

AMAX_FLOOR = 1e-30
"""A block's largest magnitude is taken as at least this, so a zero block has a finite, usable float32 scale."""


def finite_amax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Largest finite magnitude over ``dims`` as float32, kept as size 1; NaN is passed over, infinity counts as max."""
    magnitude = x.abs().nan_to_num_(nan=0.0)
    return magnitude.amax(dims, keepdim=True).float().clamp_(min=AMAX_FLOOR)


def true_divide(numerator: Tensor | float, denominator: Tensor | float) -> Tensor:
    """float32 quotient rounded once, on every device; one side may be a number.

    With a number, torch multiplies by a rounded reciprocal instead (on CUDA, or when it is the numerator), which
    would let a scale differ by device in its last place.
    """
    if not isinstance(numerator, Tensor):
        numerator = denominator.new_full((), numerator)
    if not isinstance(denominator, Tensor):
        denominator = numerator.new_full((), denominator)
    return numerator / denominator


def power_of_two_scale(amax: Tensor, element: Element, rule: str) -> Tensor:
    """E8M0 scale bytes of the float32 ``amax`` of blocks of ``element``; the result has the shape of ``amax``.

    With emax the exponent of the element's largest value:
    ``floor``: floor(log2 amax) - emax (OCP MX 1.0); the top of the block may be clipped.
    ``ceil``:  ceil(log2(amax / largest)) (NVIDIA's RCEIL); never clips.
    ``even``:  ``floor`` of amax rounded to the element's mantissa, ties up to the even one.
    Worked on the bits, so nothing is lost near powers of two. Zero gives byte 0, NaN 255, and what falls below
    2^-127 gives 0. Infinity gives 255 - emax, and 254 under ``ceil``.
    """
    mantissa, exponent = frexp(element.largest)
    emax, fraction = exponent - 1, round((mantissa * 2 - 1) * (1 << 23))
    bits = amax.view(torch.int32)
    if rule == "ceil":
        steps = (bits >> 23) + ((bits & 0x7FFFFF) > fraction).int()
        steps = torch.where(amax.isinf(), 254 + emax, steps)
    elif rule == "even":
        half_unit = 1 << (22 - element.mantissa_bits)
        steps = torch.where(amax.isinf(), bits, bits + half_unit) >> 23
    else:
        steps = bits >> 23
    return torch.where(amax.isnan(), E8M0_NAN, (steps - emax).clamp(0, 254)).to(torch.uint8)


def to_blocks(x: Tensor, rows: int, columns: int) -> Tensor:
    """[..., N, K] -> [..., ceil(N/rows), rows, ceil(K/columns), columns], zeros in the tails; a view if none."""
    *lead, num_rows, num_columns = x.shape
    down, across = -num_rows % rows, -num_columns % columns
    if down or across:
        x = F.pad(x, (0, across, 0, down))
    return x.reshape(*lead, (num_rows + down) // rows, rows, (num_columns + across) // columns, columns)


def from_blocks(blocks: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """The inverse of ``to_blocks``: the tails are cut off."""
    *lead, down, rows, across, columns = blocks.shape
    return blocks.reshape(*lead, down * rows, across * columns)[..., :num_rows, :num_columns]
