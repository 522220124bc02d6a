"""The two GEMMs of an expert layer with what surrounds them fused in: gather, gate, routing weight, order of tokens.

Gated (gemm1): row r of expert order multiplies token ``order[r] // top_k`` into gate and up and stores their activated
product at row r. Not gated (gemm2): row r is stored at ``order[r]``, times its routing weight. ``order`` may be absent:
rows stay where they are. Without a table (``direct``) block b is the single pair b.
P rows (pairs), E experts, N output columns, K reduced. The grid is an upper bound: no call waits for the device.
"""

import triton
import triton.language as tl

from kernels.dependent import LINE_BYTES, ask_ahead, let_next_in, wait_for_inputs
from kernels.triton_rows import encode_group

LINES_AHEAD = tl.constexpr(4)
"""Of each column's weights, asked for before a kernel's inputs are there."""


@triton.jit
def tile_of_program(num_blocks, num_columns, group_m: tl.constexpr):
    """(row block, column block): ``group_m`` row blocks go down a column before the next column starts.

    With 3 row blocks, 2 columns and group_m 2: (0, 0) (1, 0) (0, 1) (1, 1) (2, 0) (2, 1).
    """
    pid = tl.program_id(0)
    group_width = group_m * num_columns
    first_block = pid // group_width * group_m
    group_height = tl.minimum(num_blocks - first_block, group_m)
    return first_block + pid % group_width % group_height, pid % group_width // group_height


@triton.jit
def rows_of_block(
    row_block, expert, order_ptr, starts_ptr, offsets_ptr,
    block_m: tl.constexpr, direct: tl.constexpr, has_order: tl.constexpr,
):  # fmt: skip
    """(rows in expert order, which of them exist, their pairs) of a block."""
    lane = tl.arange(0, block_m)
    if direct:
        rows = row_block.to(tl.int64) + lane
        present = lane == 0
    else:
        rows = tl.load(starts_ptr + row_block).to(tl.int64) + lane
        present = rows < tl.load(offsets_ptr + expert + 1)
    pairs = rows
    if has_order:
        pairs = tl.load(order_ptr + rows, mask=present, other=0).to(tl.int64)
    return rows, present, pairs


@triton.jit
def gated_product(gate, up, alpha, limit, clamped: tl.constexpr):
    """silu(gate) * up, or gpt-oss's clamped form; see ``kernels.activation``."""
    if clamped:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        return (up + 1.0) * (gate * tl.sigmoid(alpha * gate))
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _rounded(x, by_hand: tl.constexpr):
    """float32 of x in BF16; ``by_hand`` for the interpreter, whose cast truncates."""
    if by_hand:
        bits = x.to(tl.int32, bitcast=True)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    else:
        rounded = x.to(tl.bfloat16).to(tl.float32)
    return rounded


@triton.jit
def store_block(
    acc, acc_up, columns, wanted, rows, present, pairs, expert, bias_ptr, weights_ptr, out_ptr, stride_om, alpha, limit,
    n_size: tl.constexpr, gated: tl.constexpr, clamped: tl.constexpr, gate_step: tl.constexpr,
    up_offset: tl.constexpr, has_bias: tl.constexpr, has_weights: tl.constexpr,
    out_scale_ptr=None, widen: tl.constexpr = False,
):  # fmt: skip
    """Routing weight on the input (gated: before bias and gate) or on the output, bias, gate, and the store.

    ``out_scale_ptr`` [P, N / 128]: rows are stored as E4M3 codes with a scale for the 128 columns of the block.
    """
    factor = tl.full((rows.shape[0],), 1.0, dtype=tl.float32)
    if has_weights:
        factor = tl.load(weights_ptr + pairs, mask=present, other=0.0)
    if gated:
        acc *= factor[:, None]
        acc_up *= factor[:, None]
    if has_bias:
        bias_ptrs = bias_ptr + expert * n_size * (2 if gated else 1) + columns * gate_step
        acc += tl.load(bias_ptrs, mask=wanted, other=0.0).to(tl.float32)[None, :]
        if gated:
            acc_up += tl.load(bias_ptrs + up_offset, mask=wanted, other=0.0).to(tl.float32)[None, :]
    if gated:
        acc = gated_product(acc, acc_up, alpha, limit, clamped)
        out_rows = rows
    else:
        acc *= factor[:, None]
        out_rows = pairs
    out_ptrs = out_ptr + out_rows[:, None] * stride_om + columns[None, :]
    if out_scale_ptr is not None:
        acc, scale = encode_group(_rounded(acc, widen), widen)
        scale_ptrs = out_scale_ptr + out_rows * (n_size // 128) + tl.min(columns, 0) // 128
        tl.store(scale_ptrs, scale, mask=present)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=present[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["num_blocks", "num_experts"])
def dense_expert_kernel(
    a_ptr, a_scale_ptr, w_ptr, w_scale_ptr, bias_ptr, out_ptr, out_scale_ptr,
    order_ptr, weights_ptr, offsets_ptr, experts_ptr, starts_ptr,
    num_blocks, num_experts, alpha, limit, stride_am, stride_as, stride_we, stride_wn,
    stride_se, stride_sn, stride_om,
    n_size: tl.constexpr, k_size: tl.constexpr, top_k: tl.constexpr,
    gated: tl.constexpr, clamped: tl.constexpr, gate_step: tl.constexpr, up_offset: tl.constexpr,
    scaling: tl.constexpr, tile_scale: tl.constexpr, has_bias: tl.constexpr, has_weights: tl.constexpr,
    direct: tl.constexpr, has_order: tl.constexpr, widen: tl.constexpr, swap: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr,
    num_stages: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """BF16 or E4M3 weights [E, N, K] by rows of the same type.

    ``scaling``: ``none``; ``block``: every 128 of K is multiplied apart, scaled by its 1x128 and 128x128 scales and
    added in float32; ``outer``: the sum is scaled by one factor a row (a_scale) and one a column (w_scale).
    ``swap``: weights are the first operand, so that few rows do not fill up a tile of 64.
    Torch twin: ``kernels.moe.moe_layer`` with backend torch. Example: x = [[1, 2]], w = [[[1, 1]]]: out [[3]].
    """
    row_block, column_block = tile_of_program(num_blocks, (n_size + block_n - 1) // block_n, group_m)
    columns = column_block * block_n + tl.arange(0, block_n)
    if dependent and direct:
        # The experts may not be known yet: what is asked for then is of no use, and does no harm.
        guess = tl.load(experts_ptr + row_block, volatile=True)
        if (guess >= 0) & (guess < num_experts):
            line = tl.arange(0, LINES_AHEAD) * (LINE_BYTES * 8 // w_ptr.dtype.element_ty.primitive_bitwidth)
            rows_ahead = tl.minimum(columns, n_size - 1).to(tl.int64)[:, None] * (gate_step * stride_wn)
            ahead = w_ptr + guess.to(tl.int64) * stride_we + rows_ahead + tl.minimum(line, k_size - 1)[None, :]
            ask_ahead(ahead)
            if gated:
                ask_ahead(ahead + up_offset * stride_wn)
    wait_for_inputs(dependent)
    expert = tl.load(experts_ptr + row_block)
    if (expert < 0) | (expert >= num_experts):
        return
    rows, present, pairs = rows_of_block(
        row_block, expert, order_ptr, starts_ptr, offsets_ptr, block_m, direct, has_order
    )
    expert = expert.to(tl.int64)
    wanted = columns < n_size if n_size % block_n else columns >= 0
    a_rows = rows
    if gated:
        a_rows = pairs // top_k
    k_index = tl.arange(0, block_k)
    a_ptrs = a_ptr + a_rows[:, None] * stride_am + k_index[None, :]
    w_rows = columns * gate_step
    w_ptrs = w_ptr + expert * stride_we + w_rows.to(tl.int64)[:, None] * stride_wn + k_index[None, :]
    up_ptrs = w_ptrs + up_offset * stride_wn
    scale_groups: tl.constexpr = (k_size + 127) // 128
    scale_rows: tl.constexpr = (n_size * (2 if gated else 1) + 127) // 128
    if scaling != "none":
        a_scale_ptrs = a_scale_ptr + a_rows * stride_as
    if scaling == "block":
        # One scale for the whole tile where its columns share one, else one a column.
        scale_row = column_block * block_n if tile_scale else tl.minimum(w_rows, n_size * gate_step - 1)
        w_scale_ptrs = w_scale_ptr + (expert * scale_rows + scale_row // 128) * scale_groups
        up_scale_ptrs = w_scale_ptr + (expert * scale_rows + (scale_row + up_offset) // 128) * scale_groups
        w_scale = tl.load(w_scale_ptrs)
        up_scale = tl.load(up_scale_ptrs) if gated else w_scale
    acc = tl.zeros((block_n, block_m) if swap else (block_m, block_n), dtype=tl.float32)
    acc_up = acc
    for step in tl.range((k_size + block_k - 1) // block_k, num_stages=num_stages):
        k_mask = k_index < (block_k if k_size % block_k == 0 else k_size - step * block_k)
        a = tl.load(a_ptrs, mask=present[:, None] & k_mask[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=wanted[:, None] & k_mask[None, :], other=0.0)
        if scaling == "block":
            a_scale = tl.load(a_scale_ptrs + step, mask=present, other=0.0)
            acc += _product(a, w, swap, widen) * _scale_of(a_scale, w_scale, tile_scale, swap)
            # The next scale is asked for a step ahead, as a lone number is not copied ahead by itself.
            next_group = tl.minimum(step + 1, scale_groups - 1)
            w_scale = tl.load(w_scale_ptrs + next_group)
        else:
            acc = _add(acc, a, w, swap, widen)
        if gated:
            w = tl.load(up_ptrs, mask=wanted[:, None] & k_mask[None, :], other=0.0)
            if scaling == "block":
                acc_up += _product(a, w, swap, widen) * _scale_of(a_scale, up_scale, tile_scale, swap)
                up_scale = tl.load(up_scale_ptrs + next_group)
            else:
                acc_up = _add(acc_up, a, w, swap, widen)
        a_ptrs += block_k
        w_ptrs += block_k
        up_ptrs += block_k

    let_next_in(dependent)
    if swap:
        acc = tl.trans(acc)
        acc_up = tl.trans(acc_up)
    if scaling == "outer":
        a_scale = tl.load(a_scale_ptrs, mask=present, other=0.0)[:, None]
        w_scale_ptrs = w_scale_ptr + expert * stride_se + w_rows * stride_sn
        acc *= a_scale * tl.load(w_scale_ptrs, mask=wanted, other=0.0)[None, :]
        if gated:
            acc_up *= a_scale * tl.load(w_scale_ptrs + up_offset * stride_sn, mask=wanted, other=0.0)[None, :]
    store_block(
        acc, acc_up, columns, wanted, rows, present, pairs, expert, bias_ptr, weights_ptr, out_ptr,
        stride_om, alpha, limit, n_size, gated, clamped, gate_step, up_offset, has_bias, has_weights,
        out_scale_ptr, widen,
    )  # fmt: skip


@triton.jit
def _add(acc, a, w, swap: tl.constexpr, widen: tl.constexpr):
    if widen:
        a = a.to(tl.float32)
        w = w.to(tl.float32)
    return tl.dot(w, tl.trans(a), acc) if swap else tl.dot(a, tl.trans(w), acc)


@triton.jit
def _product(a, w, swap: tl.constexpr, widen: tl.constexpr):
    if widen:
        a = a.to(tl.float32)
        w = w.to(tl.float32)
    return tl.dot(w, tl.trans(a)) if swap else tl.dot(a, tl.trans(w))


@triton.jit
def _scale_of(a_scale, w_scale, tile_scale: tl.constexpr, swap: tl.constexpr):
    """The factor of a product, broadcast to its rows and columns."""
    if swap:
        factor = (a_scale * w_scale)[None, :] if tile_scale else w_scale[:, None] * a_scale[None, :]
    else:
        factor = (a_scale * w_scale)[:, None] if tile_scale else a_scale[:, None] * w_scale[None, :]
    return factor
