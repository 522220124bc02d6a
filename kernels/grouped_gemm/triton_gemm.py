"""Grouped GEMM in Triton over ragged expert groups: BF16, and E4M3 with 1x128 by 128x128 block scales.

M rows in expert order, E experts, N output columns, K reduced, B row blocks. The torch twin is ``torch_gemm``.
Offsets stay on the device and the grid is an upper bound, so a call never waits and can be captured in a graph.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.formats import Quantised
from kernels.grouped_gemm.tiles import Tile, choose_tile
from kernels.permute import max_blocks
from kernels.triton_rows import interpreted, storable

TABLE_ENTRIES = 64


# Counts that change from call to call must not each compile a kernel of their own.
@triton.jit(do_not_specialize=["num_rows", "num_entries"])
def block_table_kernel(
    offsets_ptr,
    experts_ptr,
    starts_ptr,
    num_rows,
    num_entries,
    num_experts: tl.constexpr,
    block_m: tl.constexpr,
    padded_groups: tl.constexpr,
    entries: tl.constexpr,
):
    """Block-to-expert table; the rows past the last offset are one more group, of number ``num_experts``.

    Offsets [0, 2, 5, 5, 11, 19], 19 rows, block_m 4: experts [0, 1, 3, 3, 4, 4, -1, ...] and starts
    [0, 2, 5, 9, 11, 15, 0, ...]. Torch twin: ``kernels.permute.block_experts``.
    """
    group = tl.arange(0, padded_groups)
    first = tl.load(offsets_ptr + group, mask=group <= num_experts, other=0)
    last = tl.load(offsets_ptr + group + 1, mask=group < num_experts, other=0)
    last = tl.where(group == num_experts, num_rows, last)
    count = tl.where(group <= num_experts, last - first, 0)
    blocks = ((count + block_m - 1) // block_m).to(tl.int32)
    ends = tl.cumsum(blocks, 0)
    entry = tl.program_id(0) * entries + tl.arange(0, entries)
    mine = (entry[:, None] >= (ends - blocks)[None, :]) & (entry[:, None] < ends[None, :])
    used = tl.sum(mine.to(tl.int32), 1) > 0
    expert = tl.sum(tl.where(mine, group[None, :], 0), 1)
    within = (entry[:, None] - (ends - blocks)[None, :]).to(tl.int64) * block_m
    start = tl.sum(tl.where(mine, first[None, :] + within, 0), 1)
    tl.store(experts_ptr + entry, tl.where(used, expert, -1), mask=entry < num_entries)
    tl.store(starts_ptr + entry, start, mask=entry < num_entries)


@triton.jit
def _tile_of_program(num_blocks, num_columns, group_m: tl.constexpr):
    """(row block, column block) of this program: ``group_m`` row blocks go down a column before the next one starts.

    With 3 row blocks, 2 columns and group_m 2: (0, 0) (1, 0) (0, 1) (1, 1) (2, 0) (2, 1).
    """
    pid = tl.program_id(0)
    group_width = group_m * num_columns
    first_block = pid // group_width * group_m
    group_height = tl.minimum(num_blocks - first_block, group_m)
    return first_block + pid % group_width % group_height, pid % group_width // group_height


@triton.jit(do_not_specialize=["num_rows", "num_blocks", "num_experts"])
def grouped_gemm_kernel(
    a_ptr,
    a_scale_ptr,
    w_ptr,
    w_scale_ptr,
    bias_ptr,
    out_ptr,
    offsets_ptr,
    block_expert_ptr,
    block_start_ptr,
    num_rows,
    num_blocks,
    n_size,
    num_experts,
    stride_am,
    stride_we,
    stride_wn,
    stride_om,
    k_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    scaled: tl.constexpr,
    has_bias: tl.constexpr,
    widen: tl.constexpr,
):
    """One [block_m, block_n] tile of ``out[m] = a[m] @ w[expert of m].T``, summed in float32.

    ``scaled``: every 128 of K is multiplied apart, then scaled by a_scale[m, k / 128] * w_scale[e, n / 128, k / 128]
    and added in float32. ``widen``: multiply in float32, for the interpreter, whose BF16 product is wrong.
    Example: rows [[1, 2], [3, 4]] with offsets [0, 1, 2], w = [[[1, 1]], [[1, -1]]]: out [[3], [-1]].
    Torch twin: ``kernels.grouped_gemm.torch_gemm.torch_grouped_gemm``.
    """
    row_block, column_block = _tile_of_program(num_blocks, tl.cdiv(n_size, block_n), group_m)
    expert = tl.load(block_expert_ptr + row_block)
    if expert < 0:
        return

    columns = column_block * block_n + tl.arange(0, block_n)
    rows = tl.load(block_start_ptr + row_block) + tl.arange(0, block_m)
    out_ptrs = out_ptr + rows[:, None] * stride_om + columns[None, :]
    if expert == num_experts:
        zeros = tl.zeros((block_m, block_n), dtype=out_ptr.dtype.element_ty)
        tl.store(out_ptrs, zeros, mask=(rows < num_rows)[:, None] & (columns < n_size)[None, :])
        return

    expert = expert.to(tl.int64)
    row_mask = rows < tl.load(offsets_ptr + expert + 1)
    column_mask = columns < n_size
    k_index = tl.arange(0, block_k)
    a_ptrs = a_ptr + rows[:, None] * stride_am + k_index[None, :]
    w_ptrs = w_ptr + expert * stride_we + columns.to(tl.int64)[None, :] * stride_wn + k_index[:, None]
    scale_groups: tl.constexpr = (k_size + 127) // 128
    acc = tl.zeros((block_m, block_n), dtype=tl.float32)
    for k_block in range((k_size + block_k - 1) // block_k):
        # Without a tail the mask holds everywhere, and the compiler drops it.
        k_mask = k_index < (block_k if k_size % block_k == 0 else k_size - k_block * block_k)
        a = tl.load(a_ptrs, mask=row_mask[:, None] & k_mask[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=column_mask[None, :] & k_mask[:, None], other=0.0)
        if widen:
            a = a.to(tl.float32)
            w = w.to(tl.float32)
        if scaled:
            w_row = expert * tl.cdiv(n_size, 128) + column_block * block_n // 128
            w_scale = tl.load(w_scale_ptr + w_row * scale_groups + k_block)
            a_scale = tl.load(a_scale_ptr + rows * scale_groups + k_block, mask=row_mask, other=0.0)
            acc += tl.dot(a, w) * (a_scale * w_scale)[:, None]
        else:
            acc = tl.dot(a, w, acc)
        a_ptrs += block_k
        w_ptrs += block_k

    if has_bias:
        bias = tl.load(bias_ptr + expert * n_size + columns, mask=column_mask, other=0.0)
        acc += bias.to(tl.float32)[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


def block_table(offsets: Tensor, *, num_rows: int, block: int) -> tuple[Tensor, Tensor]:
    """Experts and starts of ``block_experts`` in one launch; rows past the last offset are one more group."""
    num_experts = offsets.shape[0] - 1
    num_entries = max_blocks(num_rows, num_experts + 1, block)
    experts = torch.empty(num_entries, dtype=torch.int32, device=offsets.device)
    starts = torch.empty(num_entries, dtype=torch.int64, device=offsets.device)
    block_table_kernel[(triton.cdiv(num_entries, TABLE_ENTRIES),)](
        offsets,
        experts,
        starts,
        num_rows,
        num_entries,
        num_experts=num_experts,
        block_m=block,
        padded_groups=triton.next_power_of_2(num_experts + 1),
        entries=TABLE_ENTRIES,
    )
    return experts, starts


def triton_grouped_gemm(
    rows: Tensor | Quantised,
    offsets: Tensor,
    weights: Quantised,
    *,
    bias_EN: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """BF16 [M, N]: rows (BF16, or e4m3_block with 1x128 scales) times their expert's weights, plus bias.

    Empty experts cost nothing, and rows past the last offset come back as zeros.
    """
    num_experts, n_size, _ = weights.shape
    a, w = _operands(rows, weights)
    num_rows = a.shape[0]
    out = torch.empty(num_rows, n_size, dtype=storable(torch.bfloat16), device=a.device)
    if num_rows and n_size:
        tile = tile or choose_tile(weights.format, num_rows=num_rows, num_experts=num_experts)
        scales = (rows.scale.contiguous(), weights.scale.contiguous()) if isinstance(rows, Quantised) else (None, None)
        with torch.cuda.device_of(a):
            table = block_table(offsets, num_rows=num_rows, block=tile.block_m)
            _launch(a, w, scales, bias_EN, out, offsets, table, tile)
    return out.to(torch.bfloat16)


def _launch(
    a: Tensor,
    w: Tensor,
    scales: tuple[Tensor | None, Tensor | None],
    bias_EN: Tensor | None,
    out: Tensor,
    offsets: Tensor,
    table: tuple[Tensor, Tensor],
    tile: Tile,
) -> None:
    num_experts, n_size, k_size = w.shape
    num_blocks = table[0].shape[0]
    grouped_gemm_kernel[(num_blocks * triton.cdiv(n_size, tile.block_n),)](
        a,
        scales[0],
        w,
        scales[1],
        None if bias_EN is None else bias_EN.contiguous(),
        out,
        offsets,
        *table,
        a.shape[0],
        num_blocks,
        n_size,
        num_experts,
        a.stride(0),
        w.stride(0),
        w.stride(1),
        out.stride(0),
        k_size=k_size,
        block_m=tile.block_m,
        block_n=tile.block_n,
        block_k=tile.block_k,
        group_m=tile.group_m,
        scaled=scales[0] is not None,
        has_bias=bias_EN is not None,
        widen=interpreted(),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _operands(rows: Tensor | Quantised, weights: Quantised) -> tuple[Tensor, Tensor]:
    """Both tensors as the kernel loads them: K contiguous in the rows, the weights wholly so."""
    if isinstance(rows, Quantised):
        a, w = (q.data.view(torch.float8_e4m3fn) for q in (rows, weights))
    else:
        a, w = rows.to(torch.bfloat16), weights.data
    return a if a.stride(1) == 1 else a.contiguous(), w.contiguous()
