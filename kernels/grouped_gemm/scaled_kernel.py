"""The expert GEMMs where the matrix unit scales blocks itself (sm_100): MXFP8, MXFP4 and NVFP4 as they are stored.

What surrounds the product is ``expert_kernels``'s. P rows (pairs), E experts, N output columns, K reduced.
"""

import triton
import triton.language as tl

from kernels.dependent import let_next_in, wait_for_inputs
from kernels.grouped_gemm.expert_kernels import rows_of_block, store_block, tile_of_program
from kernels.triton_rows_mx import byte_value, code_values


@triton.jit
def _add_scaled(
    acc, a, a_scale, w, w_scale, a_element: tl.constexpr, w_element: tl.constexpr, group: tl.constexpr,
    swap: tl.constexpr, widen: tl.constexpr,
):  # fmt: skip
    """``acc`` plus the product; ``widen`` decodes first, for the interpreter, which knows no E4M3 scales."""
    if widen:
        a = _decoded(a, a_scale, a_element, group)
        w = _decoded(w, w_scale, w_element, group)
        acc = tl.dot(w, tl.trans(a), acc) if swap else tl.dot(a, tl.trans(w), acc)
    elif swap:
        acc = tl.dot_scaled(w, w_scale, w_element, tl.trans(a), a_scale, a_element, acc)
    else:
        acc = tl.dot_scaled(a, a_scale, a_element, tl.trans(w), w_scale, w_element, acc)
    return acc


@triton.jit
def _decoded(codes, scale, element: tl.constexpr, group: tl.constexpr):
    """float32 of codes uint8 [N, bytes] by scales [N, groups]."""
    codes = codes.to(tl.int32)
    if element == "e2m1":
        codes = tl.reshape(tl.join(codes & 15, codes >> 4), (codes.shape[0], 2 * codes.shape[1]))
    factor = byte_value(scale.to(tl.int32)) if group == 32 else code_values(scale.to(tl.int32), "e4m3")
    values = tl.reshape(code_values(codes, element), (codes.shape[0], codes.shape[1] // group, group))
    return tl.reshape(values * factor[:, :, None], codes.shape)


@triton.jit(do_not_specialize=["num_blocks", "num_experts"])
def scaled_expert_kernel(
    a_ptr, a_scale_ptr, a_global_ptr, w_ptr, w_scale_ptr, w_global_ptr, bias_ptr, out_ptr,
    order_ptr, weights_ptr, offsets_ptr, experts_ptr, starts_ptr,
    num_blocks, num_experts, alpha, limit, stride_am, stride_as, stride_om,
    n_size: tl.constexpr, k_size: tl.constexpr, top_k: tl.constexpr,
    gated: tl.constexpr, clamped: tl.constexpr, gate_step: tl.constexpr, up_offset: tl.constexpr,
    a_element: tl.constexpr, w_element: tl.constexpr, group: tl.constexpr,
    has_bias: tl.constexpr, has_weights: tl.constexpr, direct: tl.constexpr, has_order: tl.constexpr,
    swap: tl.constexpr, widen: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr,
    num_stages: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """Codes and scales of rows [P, K] and of weights [E, N, K], ``e4m3`` or ``e2m1`` (two a byte) on either side.

    ``group`` values share a scale: 32 an E8M0 byte, 16 an E4M3 code beside a float32 divisor of the whole matrix
    (``a_global_ptr``, and an expert's in ``w_global_ptr``). ``swap``: the weights are the first operand; ``widen``: for
    the interpreter, scales that are E4M3 then come as bytes.
    Torch twin: ``kernels.moe.moe_layer`` with backend torch. Example: x = [[1, 2]], w = [[[1, 1]]]: out [[3]].
    """
    row_block, column_block = tile_of_program(num_blocks, (n_size + block_n - 1) // block_n, group_m)
    wait_for_inputs(dependent)
    expert = tl.load(experts_ptr + row_block)
    if (expert < 0) | (expert >= num_experts):
        return
    rows, present, pairs = rows_of_block(
        row_block, expert, order_ptr, starts_ptr, offsets_ptr, block_m, direct, has_order
    )
    a_pack: tl.constexpr = 2 if a_element == "e2m1" else 1
    w_pack: tl.constexpr = 2 if w_element == "e2m1" else 1
    a_bytes: tl.constexpr = (k_size + a_pack - 1) // a_pack
    w_bytes: tl.constexpr = (k_size + w_pack - 1) // w_pack
    groups: tl.constexpr = (k_size + group - 1) // group
    columns = column_block * block_n + tl.arange(0, block_n)
    wanted = columns < n_size if n_size % block_n else columns >= 0
    a_rows = pairs // top_k if gated else rows
    w_rows = expert.to(tl.int64) * (n_size * (2 if gated else 1)) + columns * gate_step
    a_index = tl.arange(0, block_k // a_pack)
    w_index = tl.arange(0, block_k // w_pack)
    s_index = tl.arange(0, block_k // group)
    a_ptrs = a_ptr + a_rows[:, None] * stride_am + a_index[None, :]
    a_s_ptrs = a_scale_ptr + a_rows[:, None] * stride_as + s_index[None, :]
    w_ptrs = w_ptr + w_rows[:, None] * w_bytes + w_index[None, :]
    w_s_ptrs = w_scale_ptr + w_rows[:, None] * groups + s_index[None, :]
    acc = tl.zeros((block_n, block_m) if swap else (block_m, block_n), dtype=tl.float32)
    acc_up = tl.zeros((block_n, block_m) if swap else (block_m, block_n), dtype=tl.float32)
    for step in tl.range((k_size + block_k - 1) // block_k, num_stages=num_stages):
        a_mask = present[:, None] & (a_index < a_bytes - step * (block_k // a_pack))[None, :]
        w_mask = wanted[:, None] & (w_index < w_bytes - step * (block_k // w_pack))[None, :]
        s_left = (s_index < groups - step * (block_k // group))[None, :]
        a = tl.load(a_ptrs, mask=a_mask, other=0)
        a_scale = tl.load(a_s_ptrs, mask=present[:, None] & s_left, other=0.0)
        w = tl.load(w_ptrs, mask=w_mask, other=0)
        w_scale = tl.load(w_s_ptrs, mask=wanted[:, None] & s_left, other=0.0)
        acc = _add_scaled(acc, a, a_scale, w, w_scale, a_element, w_element, group, swap, widen)
        if gated:
            w = tl.load(w_ptrs + up_offset * w_bytes, mask=w_mask, other=0)
            w_scale = tl.load(w_s_ptrs + up_offset * groups, mask=wanted[:, None] & s_left, other=0.0)
            acc_up = _add_scaled(acc_up, a, a_scale, w, w_scale, a_element, w_element, group, swap, widen)
        a_ptrs += block_k // a_pack
        a_s_ptrs += block_k // group
        w_ptrs += block_k // w_pack
        w_s_ptrs += block_k // group

    let_next_in(dependent)
    if swap:
        acc = tl.trans(acc)
        acc_up = tl.trans(acc_up)
    if group == 16:
        factor = 1.0 / (tl.load(a_global_ptr) * tl.load(w_global_ptr + expert))
        acc *= factor
        acc_up *= factor
    store_block(
        acc, acc_up, columns, wanted, rows, present, pairs, expert, bias_ptr, weights_ptr, out_ptr,
        stride_om, alpha, limit, n_size, gated, clamped, gate_step, up_offset, has_bias, has_weights,
    )  # fmt: skip
