"""Rows in the microscaling formats brought to BF16, which holds every one of their values, in one launch.

M rows, K columns, in blocks of 32 with an E8M0 scale each. Where the weights are multiplied in BF16 the rows need not
be stored as codes in between. Torch twins: ``FORMATS[...].encode`` and ``decode``, equal to the bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent import launch_options, let_next_in, wait_for_inputs
from kernels.formats import Quantised
from kernels.formats.triton_elements import (
    MAGNITUDE_BITS,
    byte_reciprocal,
    element_codes,
    quotient_sign,
    scale_byte,
    widen_bits,
)
from kernels.triton_rows import storable

PAIRED_PADDING = 128
_KINDS = {
    torch.bfloat16: ("bf16", torch.int16),
    torch.float16: ("f16", torch.int16),
    torch.float32: ("f32", torch.int32),
}


@triton.jit
def code_values(codes, element: tl.constexpr):
    """float32 of the codes, int32, of ``e4m3`` or ``e2m1``. Example, E2M1: F hex is -6."""
    if element == "e4m3":
        bits = ((codes & 0x80) << 24) | ((codes & 0x7F) << 20)
        value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
        value = tl.where((codes & 0x7F) == 0x7F, float("nan"), value)
    else:
        bits = ((codes & 8) << 28) | ((codes & 7) << 22)
        value = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
    return value


@triton.jit
def byte_value(byte):
    """float32 2^(byte - 127) of E8M0 bytes int32, NaN for 255."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def mx_rows_kernel(
    x_ptr, scale_ptr, out_ptr, num_rows, num_columns, stride_x, stride_om,
    kind: tl.constexpr, element: tl.constexpr, rule: tl.constexpr, overflow: tl.constexpr, encoded: tl.constexpr,
    paired: tl.constexpr, block_rows: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """``encoded``: the values of E4M3 codes and scale bytes; else x, seen as integers, rounded to the format's values.

    ``paired``: every 128 columns hold the 64 even ones before the odd ones, and what is past the last column is zeros.
    Example, mxfp4 by ``floor``: [2.7, 0.4, 0, ...] gives [3, 0.5, 0, ...], paired [3, 0, ..., 0.5, ...].
    """
    rows = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * 128 + tl.arange(0, 128)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    wait_for_inputs(dependent)
    let_next_in(dependent)
    raw = tl.load(x_ptr + rows[:, None] * stride_x + columns[None, :], mask=mask, other=0)
    if encoded:
        groups = tl.program_id(1) * 4 + tl.arange(0, 4)
        num_groups = (num_columns + 31) // 32
        scale_mask = (rows < num_rows)[:, None] & (groups < num_groups)[None, :]
        byte = tl.load(scale_ptr + rows[:, None] * num_groups + groups[None, :], mask=scale_mask, other=0).to(tl.int32)
        codes = tl.reshape(raw.to(tl.int32), (block_rows, 4, 32))
    else:
        bits = tl.reshape(widen_bits(raw, kind), (block_rows, 4, 32))
        byte = scale_byte(tl.max(bits & MAGNITUDE_BITS, 2), element, rule)
        scaled = bits.to(tl.float32, bitcast=True) * byte_reciprocal(byte)[:, :, None]
        codes = element_codes(scaled, quotient_sign(bits, scaled), element, overflow)
    values = code_values(codes, element) * byte_value(byte)[:, :, None]
    if paired:
        values = tl.permute(tl.reshape(values, (block_rows, 64, 2)), (0, 2, 1))
        mask = (rows < num_rows)[:, None] & (columns >= 0)[None, :]
    values = tl.reshape(values, (block_rows, 128)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * stride_om + columns[None, :], values, mask=mask)


def round_mx_rows(x_MK: Tensor, *, name: str, scale_rule: str, overflow: str, paired: bool = False) -> Tensor:
    """BF16 [M, K] of what ``FORMATS[name]`` makes of x; ``paired``: [M, K padded to 128], see the kernel."""
    kind, integer = _KINDS[x_MK.dtype]
    raw = x_MK.detach().contiguous().view(integer)
    names = {"kind": kind, "element": "e2m1" if name == "mxfp4" else "e4m3", "rule": scale_rule, "overflow": overflow}
    return _launch(raw, None, x_MK.shape[1], names, paired=paired)


def decode_mx_rows(q: Quantised, *, paired: bool = False) -> Tensor:
    """BF16 [M, K] of MXFP8 rows; ``paired`` as in ``round_mx_rows``."""
    names = {"kind": "u8", "element": "e4m3", "rule": q.scale_rule, "overflow": q.overflow}
    return _launch(q.data.contiguous(), q.scale.contiguous(), q.shape[1], names, paired=paired)


def _launch(raw: Tensor, scale: Tensor | None, num_columns: int, names: dict[str, str], *, paired: bool) -> Tensor:
    num_rows, block_rows = raw.shape[0], 16
    width = triton.cdiv(num_columns, PAIRED_PADDING) * PAIRED_PADDING if paired else num_columns
    out = torch.empty(num_rows, width, dtype=storable(torch.bfloat16), device=raw.device)
    if out.numel():
        with torch.cuda.device_of(raw):
            mx_rows_kernel[(triton.cdiv(num_rows, block_rows), triton.cdiv(num_columns, 128))](
                raw, scale, out, num_rows, num_columns, raw.stride(0), out.stride(0),
                **names, encoded=scale is not None, paired=paired, block_rows=block_rows,
                **launch_options(raw.device),
            )  # fmt: skip
    return out.to(torch.bfloat16)
