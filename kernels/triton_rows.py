"""The stages around the grouped GEMMs in Triton, one pass over memory each: quantise, activation, combine.

M rows in expert order, K columns, I expert width, T tokens, H hidden. Rows are addressed with 64 bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent import launch_options, let_next_in, wait_for_inputs
from kernels.formats import Quantised

SCALE_GROUP = 128


@triton.jit
def encode_group(x, by_hand: tl.constexpr):
    """E4M3 codes uint8 [M, 128] and float32 scales [M] of float32 rows of one group: see ``quantise_block_kernel``."""
    magnitude = tl.where(x == x, tl.abs(x), 0.0)
    # Infinity counts as BF16's largest value; the floor is that of the formats, so that zero rows divide.
    amax = tl.minimum(tl.maximum(tl.max(magnitude, 1), 1e-30), 3.3895313892515355e38)
    scale = tl.math.div_rn(amax, tl.full(amax.shape, 448.0, tl.float32))
    scaled = tl.math.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    scaled = tl.where(x == x, tl.minimum(tl.maximum(scaled, -448.0), 448.0), scaled)
    if by_hand:
        exponent = (scaled.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        magic = tl.maximum(exponent, 0.015625) * (0.125 * 12582912.0)
        sign = scaled.to(tl.int32, bitcast=True) & -0x80000000
        rounded = ((tl.abs(scaled) + magic) - magic).to(tl.int32, bitcast=True) | sign
        scaled = rounded.to(tl.float32, bitcast=True)
    return tl.where(x == x, scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True), 0x7F), scale


# The number of rows changes from call to call and must not compile a kernel each time.
@triton.jit(do_not_specialize=["num_rows"])
def quantise_block_kernel(
    x_ptr, code_ptr, scale_ptr, num_rows, num_columns, stride_x, block_rows: tl.constexpr, by_hand: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    """E4M3 codes and float32 scales of 1x128 groups: scale = amax / 448, code = round(x / scale).

    ``by_hand`` rounds to E4M3's grid before the cast, for the interpreter, whose cast truncates.
    Example: a row [448, 1, -2, 0, ...] has the scale 1 and the codes 7E, 38, C0, 00 hex.
    Torch twin: ``FORMATS["e4m3_block"].encode``, with the scale rule ``none`` and overflow ``saturate``.
    """
    rows = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    group = tl.program_id(1)
    columns = group * 128 + tl.arange(0, 128)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    wait_for_inputs(dependent)
    let_next_in(dependent)
    x = tl.load(x_ptr + rows[:, None] * stride_x + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    codes, scale = encode_group(x, by_hand)
    tl.store(code_ptr + rows[:, None] * num_columns + columns[None, :], codes, mask=mask)
    tl.store(scale_ptr + rows * tl.num_programs(1) + group, scale, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def activation_kernel(
    h_ptr,
    out_ptr,
    num_rows,
    width,
    alpha,
    limit,
    clamped: tl.constexpr,
    interleaved: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Gate and up columns of [M, 2I] to activated [M, I], in float32.

    Example, gpt-oss: a row [1, 2] of one interleaved pair gives 2.537387.
    Torch twin: ``kernels.activation.apply_activation``.
    """
    rows = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
    if interleaved:
        gate_ptrs = h_ptr + rows[:, None] * (2 * width) + 2 * columns[None, :]
        up_ptrs = gate_ptrs + 1
    else:
        gate_ptrs = h_ptr + rows[:, None] * (2 * width) + columns[None, :]
        up_ptrs = gate_ptrs + width
    gate = tl.load(gate_ptrs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptrs, mask=mask, other=0.0).to(tl.float32)
    if clamped:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        out = (up + 1.0) * (gate * tl.sigmoid(alpha * gate))
    else:
        out = gate * tl.sigmoid(gate) * up
    out_ptrs = out_ptr + rows[:, None] * width + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def combine_kernel(
    rows_ptr,
    row_of_pair_ptr,
    weights_ptr,
    out_ptr,
    hidden,
    top_k: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Weighted sum of a token's rows in float32, in the order of k; a pair whose row is -1 adds nothing.

    Example: rows [[1], [10]], pairs [1, 0] of one token with the weights [0.5, 2]: 0.5 * 10 + 2 * 1 = 7.
    Torch twin: ``kernels.permute.combine_rows``.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    total = tl.zeros((block_columns,), dtype=tl.float32)
    for k in range(top_k):
        row = tl.load(row_of_pair_ptr + token * top_k + k)
        weight = tl.load(weights_ptr + token * top_k + k)
        present = columns < tl.where(row >= 0, hidden, 0)
        values = tl.load(rows_ptr + row * hidden + columns, mask=present, other=0.0).to(tl.float32)
        total += tl.where(row >= 0, weight * values, 0.0)
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=columns < hidden)


def interpreted() -> bool:
    """True where TRITON_INTERPRET=1 was set before this module was imported: kernels then run on a CPU."""
    return not isinstance(combine_kernel, triton.JITFunction)


def storable(dtype: torch.dtype) -> torch.dtype:
    """What a kernel writes for a result of ``dtype``: the interpreter truncates to BF16, so torch rounds there."""
    return torch.float32 if interpreted() else dtype


def triton_quantise_block(x_MK: Tensor) -> Quantised:
    """BF16 rows [M, K] as e4m3_block activations."""
    num_rows, num_columns = x_MK.shape
    x_MK = x_MK.to(torch.bfloat16).contiguous()
    groups, block_rows = triton.cdiv(num_columns, SCALE_GROUP), 16
    codes = torch.empty(num_rows, num_columns, dtype=torch.uint8, device=x_MK.device)
    scale = torch.empty(num_rows, groups, dtype=torch.float32, device=x_MK.device)
    if codes.numel():
        with torch.cuda.device_of(x_MK):
            quantise_block_kernel[(triton.cdiv(num_rows, block_rows), groups)](
                x_MK,
                codes,
                scale,
                num_rows,
                num_columns,
                x_MK.stride(0),
                block_rows=block_rows,
                by_hand=interpreted(),
                **launch_options(x_MK.device),
            )
    return Quantised("e4m3_block", (num_rows, num_columns), codes, scale, None, "none", "saturate")


def triton_activation(h_M2I: Tensor, *, kind: str, alpha: float, limit: float, interleaved: bool) -> Tensor:
    """Activated rows [M, I] in the dtype of the input [M, 2I]."""
    num_rows, width = h_M2I.shape[0], h_M2I.shape[1] // 2
    out = torch.empty(num_rows, width, dtype=storable(h_M2I.dtype), device=h_M2I.device)
    block_rows, block_columns = 4, 256
    if out.numel():
        with torch.cuda.device_of(h_M2I):
            activation_kernel[(triton.cdiv(num_rows, block_rows), triton.cdiv(width, block_columns))](
                h_M2I.contiguous(),
                out,
                num_rows,
                width,
                float(alpha),
                float(limit),
                clamped=kind == "clamped_swiglu",
                interleaved=interleaved,
                block_rows=block_rows,
                block_columns=block_columns,
            )
    return out.to(h_M2I.dtype)


def triton_combine(rows_MH: Tensor, row_of_pair_TK: Tensor, weights_TK: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    """Weighted sums [T, H]; ``row_of_pair_TK`` int64, -1 for a pair without a row."""
    (num_tokens, top_k), hidden = row_of_pair_TK.shape, rows_MH.shape[1]
    out = torch.empty(num_tokens, hidden, dtype=storable(out_dtype), device=rows_MH.device)
    block_columns = min(1024, triton.next_power_of_2(max(hidden, 1)))
    if out.numel():
        with torch.cuda.device_of(rows_MH):
            combine_kernel[(num_tokens, triton.cdiv(hidden, block_columns))](
                rows_MH.contiguous(),
                row_of_pair_TK,
                weights_TK.float().contiguous(),
                out,
                hidden,
                top_k=top_k,
                block_columns=block_columns,
            )
    return out.to(out_dtype)
