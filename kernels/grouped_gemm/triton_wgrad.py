"""Weight gradients in Triton: BF16 straight from the rows, FP8 from operands encoded and turned round by groups.

M rows in expert order, E experts, N gradient columns, K input columns. FP8 matrix instructions read both operands along
the summed dimension, which here are the rows, so FP8 operands are stored as [columns, Q] with Q in groups of 128 rows
of one expert: a last group is filled up with zeros, every group starts at a multiple of 128, and a block scale belongs
to 128 rows of one column. The torch twin is ``wgrad.torch_wgrad``. Nothing waits for the device.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.formats import Quantised
from kernels.permute import block_experts
from kernels.triton_rows import interpreted

GROUP = 128


@dataclass(frozen=True)
class WgradTile:
    """Block of the gradient [N, K] that a program sums, rows it reads at a time (FP8: always a group), launch shape."""

    block_n: int
    block_k: int
    block_m: int
    num_warps: int
    num_stages: int


TILES = {"bf16": WgradTile(128, 128, 64, 8, 4), "fp8": WgradTile(128, 128, GROUP, 8, 3)}


@triton.jit
def wgrad_kernel(
    g_ptr,
    x_ptr,
    out_ptr,
    offsets_ptr,
    n_size,
    k_size,
    stride_g,
    stride_x,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    block_m: tl.constexpr,
    widen: tl.constexpr,
):
    """One [block_n, block_k] tile of ``out[e] = g[rows of e].T @ x[rows of e]``, float32.

    ``widen``: multiply in float32, for the interpreter, whose BF16 product is wrong. Example: gradients [[1], [2], [3]]
    and rows [[1, 1], [1, 0], [0, 2]] with offsets [0, 2, 2, 3]: out [[3, 1]], [[0, 0]], [[0, 6]].
    """
    tiles_k = tl.cdiv(k_size, block_k)
    n = tl.program_id(0) // tiles_k * block_n + tl.arange(0, block_n)
    k = tl.program_id(0) % tiles_k * block_k + tl.arange(0, block_k)
    expert = tl.program_id(1).to(tl.int64)
    first = tl.load(offsets_ptr + expert)
    last = tl.load(offsets_ptr + expert + 1)
    rows = first + tl.arange(0, block_m)
    g_ptrs = g_ptr + rows[None, :] * stride_g + n[:, None]
    x_ptrs = x_ptr + rows[:, None] * stride_x + k[None, :]
    acc = tl.zeros((block_n, block_k), dtype=tl.float32)
    step = tl.full((), block_m, tl.int64)  # a stride of 1 is a constant to the compiler and has no type to widen
    for _ in range(((last - first + block_m - 1) // block_m).to(tl.int32)):
        g = tl.load(g_ptrs, mask=(rows < last)[None, :] & (n < n_size)[:, None], other=0.0)
        x = tl.load(x_ptrs, mask=(rows < last)[:, None] & (k < k_size)[None, :], other=0.0)
        if widen:
            g = g.to(tl.float32)
            x = x.to(tl.float32)
        acc = tl.dot(g, x, acc)
        rows += block_m
        g_ptrs += step * stride_g
        x_ptrs += step * stride_x
    out_ptrs = out_ptr + expert * n_size * k_size + n.to(tl.int64)[:, None] * k_size + k[None, :]
    tl.store(out_ptrs, acc, mask=(n < n_size)[:, None] & (k < k_size)[None, :])


@triton.jit
def wgrad_fp8_kernel(
    g_ptr,
    g_scale_ptr,
    x_ptr,
    x_scale_ptr,
    out_ptr,
    group_ends_ptr,
    n_size,
    k_size,
    stride_q,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    blocked: tl.constexpr,
    widen: tl.constexpr,
):
    """The same from codes g [N, Q] and x [K, Q]: expert e has the groups ``group_ends[e - 1]`` to ``group_ends[e]``.

    ``blocked``: the product of a group is scaled by g_scale[group, n] * x_scale[group, k] and added in float32;
    otherwise both have one scale for all, and the whole sum is scaled.
    """
    tiles_k = tl.cdiv(k_size, block_k)
    n = tl.program_id(0) // tiles_k * block_n + tl.arange(0, block_n)
    k = tl.program_id(0) % tiles_k * block_k + tl.arange(0, block_k)
    expert = tl.program_id(1).to(tl.int64)
    first = tl.load(group_ends_ptr + expert - 1, mask=expert > 0, other=0)
    last = tl.load(group_ends_ptr + expert)
    within = tl.arange(0, 128)
    g_ptrs = g_ptr + n.to(tl.int64)[:, None] * stride_q + first * 128 + within[None, :]
    x_ptrs = x_ptr + k.to(tl.int64)[None, :] * stride_q + first * 128 + within[:, None]
    acc = tl.zeros((block_n, block_k), dtype=tl.float32)
    for i in range((last - first).to(tl.int32)):
        g = tl.load(g_ptrs, mask=(n < n_size)[:, None], other=0.0)
        x = tl.load(x_ptrs, mask=(k < k_size)[None, :], other=0.0)
        if widen:
            g = g.to(tl.float32)
            x = x.to(tl.float32)
        if blocked:
            g_scale = tl.load(g_scale_ptr + (first + i) * n_size + n, mask=n < n_size, other=0.0)
            x_scale = tl.load(x_scale_ptr + (first + i) * k_size + k, mask=k < k_size, other=0.0)
            acc += tl.dot(g, x) * (g_scale[:, None] * x_scale[None, :])
        else:
            # Not summed on in the matrix unit, which on Hopper keeps fewer bits than float32.
            acc += tl.dot(g, x)
        g_ptrs += 128
        x_ptrs += 128
    if not blocked:
        acc *= tl.load(g_scale_ptr) * tl.load(x_scale_ptr)
    out_ptrs = out_ptr + expert * n_size * k_size + n.to(tl.int64)[:, None] * k_size + k[None, :]
    tl.store(out_ptrs, acc, mask=(n < n_size)[:, None] & (k < k_size)[None, :])


@triton.jit
def turn_rows_kernel(
    x_ptr,
    code_ptr,
    scale_ptr,
    offsets_ptr,
    group_expert_ptr,
    group_start_ptr,
    num_columns,
    stride_x,
    stride_q,
    encoded: tl.constexpr,
    e5m2: tl.constexpr,
    block_columns: tl.constexpr,
    by_hand: tl.constexpr,
):
    """128 rows of an expert by ``block_columns``, written as [columns, 128]; zeros past the expert's last row.

    ``encoded``: the rows are codes already and are only turned. Otherwise every column of the group gets the scale
    amax / largest and its codes. ``by_hand`` rounds to the grid before the cast, for the interpreter, which truncates.
    """
    group = tl.program_id(0).to(tl.int64)
    expert = tl.load(group_expert_ptr + group)
    within = tl.arange(0, 128)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    rows = tl.load(group_start_ptr + group) + within
    last = tl.load(offsets_ptr + expert + 1, mask=expert >= 0, other=0)
    mask = (rows < last)[:, None] & (columns < num_columns)[None, :]
    x = tl.load(x_ptr + rows[:, None] * stride_x + columns[None, :], mask=mask, other=0)
    if encoded:
        codes = x
    else:
        x = x.to(tl.float32)
        largest: tl.constexpr = 57344.0 if e5m2 else 448.0
        # Infinity counts as BF16's largest value, and a zero column gets the formats' floor, so that it divides.
        amax = tl.max(tl.where(x == x, tl.abs(x), 0.0), 0)
        amax = tl.minimum(tl.maximum(amax, 1e-30), 3.3895313892515355e38)
        scale = tl.math.div_rn(amax, tl.full((block_columns,), largest, tl.float32))
        scaled = tl.math.div_rn(x, tl.broadcast_to(scale[None, :], (128, block_columns)))
        scaled = tl.where(x == x, tl.minimum(tl.maximum(scaled, -largest), largest), scaled)
        if by_hand:
            least: tl.constexpr = 0.00006103515625 if e5m2 else 0.015625
            step: tl.constexpr = 0.25 if e5m2 else 0.125
            exponent = (scaled.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
            magic = tl.maximum(exponent, least) * (step * 12582912.0)
            sign = scaled.to(tl.int32, bitcast=True) & -0x80000000
            rounded = ((tl.abs(scaled) + magic) - magic).to(tl.int32, bitcast=True) | sign
            scaled = rounded.to(tl.float32, bitcast=True)
        if e5m2:
            codes = tl.where(x == x, scaled.to(tl.float8e5).to(tl.uint8, bitcast=True), 0x7E)
        else:
            codes = tl.where(x == x, scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True), 0x7F)
        tl.store(scale_ptr + group * num_columns + columns, scale, mask=columns < num_columns)
    code_ptrs = code_ptr + columns.to(tl.int64)[None, :] * stride_q + group * 128 + within[:, None]
    tl.store(code_ptrs, codes, mask=(columns < num_columns)[None, :])


def triton_wgrad(
    grads: Tensor | Quantised,
    rows: Tensor | Quantised,
    offsets: Tensor,
    *,
    grads_format: str,
    rows_format: str,
    tile: WgradTile | None = None,
) -> Tensor:
    """float32 [E, N, K]. Tensor-scaled operands come encoded, all others wide (see ``wgrad.grouped_wgrad``)."""
    num_experts, (num_rows, n_size), k_size = offsets.shape[0] - 1, grads.shape, rows.shape[1]
    device = offsets.device
    if not (num_rows and n_size and k_size and num_experts):
        return torch.zeros(num_experts, n_size, k_size, dtype=torch.float32, device=device)
    out = torch.empty(num_experts, n_size, k_size, dtype=torch.float32, device=device)
    with torch.cuda.device_of(offsets):
        if grads_format == rows_format == "bf16":
            _bf16(grads, rows, offsets, out, tile or TILES["bf16"])
        else:
            _fp8((grads, grads_format), (rows, rows_format), offsets, out, tile or TILES["fp8"])
    return out


def _bf16(grads: Tensor, rows: Tensor, offsets: Tensor, out: Tensor, tile: WgradTile) -> None:
    g, x = (t.to(torch.bfloat16) for t in (grads, rows))
    g, x = (t if t.stride(1) == 1 else t.contiguous() for t in (g, x))
    num_experts, n_size, k_size = out.shape
    wgrad_kernel[(triton.cdiv(n_size, tile.block_n) * triton.cdiv(k_size, tile.block_k), num_experts)](
        g,
        x,
        out,
        offsets,
        n_size,
        k_size,
        g.stride(0),
        x.stride(0),
        block_n=tile.block_n,
        block_k=tile.block_k,
        block_m=tile.block_m,
        widen=interpreted(),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _fp8(
    grads: tuple[Tensor | Quantised, str],
    rows: tuple[Tensor | Quantised, str],
    offsets: Tensor,
    out: Tensor,
    tile: WgradTile,
) -> None:
    counts = offsets.diff()
    groups = block_experts(counts, GROUP, num_rows=grads[0].shape[0])
    group_ends = ((counts + GROUP - 1) // GROUP).cumsum(0)
    turned = [turn_rows(operand, name, offsets, (groups.experts, groups.starts)) for operand, name in (grads, rows)]
    num_experts, n_size, k_size = out.shape
    wgrad_fp8_kernel[(triton.cdiv(n_size, tile.block_n) * triton.cdiv(k_size, tile.block_k), num_experts)](
        *turned[0],
        *turned[1],
        out,
        group_ends,
        n_size,
        k_size,
        turned[0][0].stride(0),
        block_n=tile.block_n,
        block_k=tile.block_k,
        blocked=grads[1].endswith("_block"),
        widen=interpreted(),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def turn_rows(
    operand: Tensor | Quantised, name: str, offsets: Tensor, groups: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Codes [columns, Q] in the FP8 dtype of the format ``name``, and scales: [groups, columns], or the tensor's own.

    ``groups``: expert int32 [G] (-1 for a spare one, whose codes are zeros) and first row int64 [G].
    """
    e5m2 = name.startswith("e5m2")
    encoded = isinstance(operand, Quantised)
    x = operand.data if encoded else operand.to(torch.bfloat16)
    x = x if x.stride(1) == 1 else x.contiguous()
    num_groups, num_columns = groups[0].shape[0], x.shape[1]
    codes = torch.empty(num_columns, num_groups * GROUP, dtype=torch.uint8, device=x.device)
    scale = operand.scale if encoded else torch.empty(num_groups, num_columns, device=x.device)
    block_columns = 32
    turn_rows_kernel[(num_groups, triton.cdiv(num_columns, block_columns))](
        x,
        codes,
        scale,
        offsets,
        *groups,
        num_columns,
        x.stride(0),
        codes.stride(0),
        encoded=encoded,
        e5m2=e5m2,
        block_columns=block_columns,
        by_hand=interpreted(),
    )
    return codes.view(torch.float8_e5m2 if e5m2 else torch.float8_e4m3fn), scale
