"""Input gradients in Triton: BF16, and FP8 gradients (E5M2 or E4M3) by E4M3 weights with block or tensor scales.

M rows in expert order, E experts, N reduced, K output columns. The torch twin is the grouped GEMM on transposed
weights. BF16 weights are read as forward stores them; FP8 matrix instructions want the reduced dimension contiguous,
so FP8 weights come transposed in memory. Nothing waits for the device.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.formats import Quantised
from kernels.permute import block_experts
from kernels.triton_rows import interpreted, storable


@dataclass(frozen=True)
class DgradTile:
    """Rows, output columns and reduced columns of a program (with block scales 128 of the last), launch shape."""

    block_m: int
    block_k: int
    block_n: int
    num_warps: int
    num_stages: int


# (largest mean rows an expert, tile), ascending.
TILES = {
    "bf16": ((64, DgradTile(64, 128, 64, 4, 4)), (float("inf"), DgradTile(128, 128, 64, 8, 4))),
    "fp8": ((64, DgradTile(64, 64, 128, 4, 4)), (float("inf"), DgradTile(128, 128, 128, 8, 3))),
}


# Counts that change from call to call must not each compile a kernel of their own.
@triton.jit(do_not_specialize=["num_blocks"])
def dgrad_kernel(
    g_ptr,
    g_scale_ptr,
    w_ptr,
    w_scale_ptr,
    out_ptr,
    offsets_ptr,
    block_expert_ptr,
    block_start_ptr,
    num_blocks,
    k_size,
    stride_g,
    stride_we,
    stride_wn,
    stride_wk,
    n_size: tl.constexpr,
    block_m: tl.constexpr,
    block_k: tl.constexpr,
    block_n: tl.constexpr,
    scales: tl.constexpr,
    widen: tl.constexpr,
):
    """One [block_m, block_k] tile of ``out[m] = g[m] @ w[expert of m]`` with w as [N, K], summed in float32.

    ``scales``: none; block (g_scale [M, N/128], w_scale [E, K/128, N/128], every 128 of N scaled apart); tensor (one of
    the rows, one an expert). ``widen``: multiply in float32, for the interpreter, whose BF16 product is wrong.
    Example: gradients [[1], [2]] of two experts with w = [[[1, 3]], [[5, 7]]]: out [[1, 3], [10, 14]].
    """
    row_block = tl.program_id(0) % num_blocks
    column_block = tl.program_id(0) // num_blocks
    expert = tl.load(block_expert_ptr + row_block).to(tl.int64)
    if expert < 0:
        return
    rows = tl.load(block_start_ptr + row_block) + tl.arange(0, block_m)
    row_mask = rows < tl.load(offsets_ptr + expert + 1)
    k = column_block * block_k + tl.arange(0, block_k)
    n = tl.arange(0, block_n)
    g_ptrs = g_ptr + rows[:, None] * stride_g + n[None, :]
    w_ptrs = w_ptr + expert * stride_we + n.to(tl.int64)[:, None] * stride_wn + k.to(tl.int64)[None, :] * stride_wk
    groups: tl.constexpr = (n_size + 127) // 128
    acc = tl.zeros((block_m, block_k), dtype=tl.float32)
    for n_block in range((n_size + block_n - 1) // block_n):
        # Without a tail the mask holds everywhere, and the compiler drops it.
        n_mask = n < (block_n if n_size % block_n == 0 else n_size - n_block * block_n)
        g = tl.load(g_ptrs, mask=row_mask[:, None] & n_mask[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=n_mask[:, None] & (k < k_size)[None, :], other=0.0)
        if widen:
            g = g.to(tl.float32)
            w = w.to(tl.float32)
        if scales == "block":
            w_row = expert * tl.cdiv(k_size, 128) + column_block * block_k // 128
            w_scale = tl.load(w_scale_ptr + w_row * groups + n_block)
            g_scale = tl.load(g_scale_ptr + rows * groups + n_block, mask=row_mask, other=0.0)
            acc += tl.dot(g, w) * (g_scale * w_scale)[:, None]
        elif scales == "tensor":
            # Not summed on in the matrix unit, which on Hopper keeps fewer bits than float32.
            acc += tl.dot(g, w)
        else:
            acc = tl.dot(g, w, acc)
        g_ptrs += block_n
        w_ptrs += block_n * stride_wn
    if scales == "tensor":
        acc *= tl.load(g_scale_ptr) * tl.load(w_scale_ptr + expert)
    out_ptrs = out_ptr + rows[:, None] * k_size + k[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & (k < k_size)[None, :])


def triton_dgrad(
    grads: Tensor | Quantised, offsets: Tensor, w_EKN: Quantised, *, tile: DgradTile | None = None
) -> Tensor:
    """BF16 [M, K] (see ``dgrad.grouped_dgrad``)."""
    (num_experts, k_size, n_size), num_rows = w_EKN.shape, grads.shape[0]
    out = torch.zeros(num_rows, k_size, dtype=storable(torch.bfloat16), device=offsets.device)
    if not (num_rows and k_size):
        return out.to(torch.bfloat16)
    g, w, scales = _operands(grads, w_EKN)
    mean_rows = num_rows / min(num_experts, num_rows)
    tile = tile or next(t for most, t in TILES["bf16" if scales == "none" else "fp8"] if mean_rows <= most)
    with torch.cuda.device_of(g):
        table = block_experts(offsets.diff(), tile.block_m, num_rows=num_rows)
        num_blocks = table.experts.shape[0]
        dgrad_kernel[(num_blocks * triton.cdiv(k_size, tile.block_k),)](
            g,
            grads.scale.contiguous() if isinstance(grads, Quantised) else None,
            w,
            w_EKN.scale.contiguous() if w_EKN.scale is not None else None,
            out,
            offsets,
            table.experts,
            table.starts,
            num_blocks,
            k_size,
            g.stride(0),
            w.stride(0),
            w.stride(2),
            w.stride(1),
            n_size=n_size,
            block_m=tile.block_m,
            block_k=tile.block_k,
            block_n=tile.block_n,
            scales=scales,
            widen=interpreted(),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return out.to(torch.bfloat16)


def _operands(grads: Tensor | Quantised, w_EKN: Quantised) -> tuple[Tensor, Tensor, str]:
    """Both tensors as the kernel loads them, and where their scales are."""
    if not isinstance(grads, Quantised):
        g = grads.to(torch.bfloat16)
        return g if g.stride(1) == 1 else g.contiguous(), w_EKN.data, "none"
    element = torch.float8_e5m2 if grads.format.startswith("e5m2") else torch.float8_e4m3fn
    g, w = grads.data.contiguous().view(element), w_EKN.data.contiguous().view(torch.float8_e4m3fn)
    return g, w, grads.format.split("_")[1]
