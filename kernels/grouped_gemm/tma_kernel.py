"""The expert GEMMs for many rows an expert: weights come through tensor descriptors (TMA), gate and up in one product.

What surrounds the product is ``expert_kernels``'s. One product of twice the columns reads a tile of rows from shared
memory once instead of twice, and descriptors leave registers and address arithmetic to the sums.
P rows (pairs), N output columns, K reduced.
"""

import triton
import triton.language as tl

from kernels.dependent import let_next_in, wait_for_inputs
from kernels.grouped_gemm.expert_kernels import rows_of_block, store_block, tile_of_program


@triton.jit(do_not_specialize=["num_blocks", "num_experts"])
def tma_expert_kernel(
    a, a_scale_ptr, w_desc, w_scale_ptr, bias_ptr, out_ptr,
    order_ptr, weights_ptr, offsets_ptr, experts_ptr, starts_ptr,
    num_blocks, num_experts, alpha, limit, stride_am, stride_as, stride_se, stride_sn, stride_om,
    n_size: tl.constexpr, k_size: tl.constexpr, top_k: tl.constexpr,
    gated: tl.constexpr, clamped: tl.constexpr, gate_step: tl.constexpr, up_offset: tl.constexpr,
    scaling: tl.constexpr, has_bias: tl.constexpr, has_weights: tl.constexpr, has_order: tl.constexpr,
    a_is_desc: tl.constexpr, widen: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr,
    num_stages: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """BF16 or E4M3 weights by rows of the same type; ``scaling`` as in ``dense_expert_kernel``, a block's scale holding
    for all of a tile's gate (or up) columns.

    ``w_desc`` is over [E * parts, N, K], a block holds ``parts`` (2 if gated: gate and up) of ``block_n`` columns;
    where gate and up alternate it is over [E, 2N, K]. ``a`` is a descriptor over rows in expert order, or a pointer to
    gather from. Torch twin: ``kernels.moe.moe_layer`` with backend torch. Example: x = [[1, 2]], w = [[[1, 1]]]: [[3]].
    """
    row_block, column_block = tile_of_program(num_blocks, (n_size + block_n - 1) // block_n, group_m)
    wait_for_inputs(dependent)
    expert = tl.load(experts_ptr + row_block)
    if (expert < 0) | (expert >= num_experts):
        return
    rows, present, pairs = rows_of_block(
        row_block, expert, order_ptr, starts_ptr, offsets_ptr, block_m, False, has_order
    )
    parts: tl.constexpr = 2 if gated else 1
    width: tl.constexpr = parts * block_n
    w_lead = expert * (parts if gate_step == 1 else 1)
    w_first = column_block * block_n * gate_step
    a_rows = rows
    if gated:
        a_rows = pairs // top_k
    if a_is_desc:
        a_first = tl.load(starts_ptr + row_block).to(tl.int32)
    else:
        k_index = tl.arange(0, block_k)
        a_ptrs = a + a_rows[:, None] * stride_am + k_index[None, :]
    wide_expert = expert.to(tl.int64)
    if scaling != "none":
        a_scale_ptrs = a_scale_ptr + a_rows * stride_as
    if scaling == "block":
        groups: tl.constexpr = (k_size + 127) // 128
        scale_rows: tl.constexpr = (n_size * parts + 127) // 128
        gate_scale_ptrs = w_scale_ptr + (wide_expert * scale_rows + w_first // 128) * groups
        up_scale_ptrs = w_scale_ptr + (wide_expert * scale_rows + (w_first + up_offset) // 128) * groups
        is_gate = tl.arange(0, width) < block_n
        gate_scale = tl.load(gate_scale_ptrs)
        up_scale = tl.load(up_scale_ptrs)
    acc = tl.zeros((block_m, width), dtype=tl.float32)
    for step in tl.range((k_size + block_k - 1) // block_k, num_stages=num_stages):
        if a_is_desc:
            x = a.load([a_first, step * block_k])
        else:
            k_mask = k_index < (block_k if k_size % block_k == 0 else k_size - step * block_k)
            x = tl.load(a_ptrs, mask=present[:, None] & k_mask[None, :], other=0.0)
            a_ptrs += block_k
        w = tl.reshape(w_desc.load([w_lead, w_first, step * block_k]), (width, block_k))
        if widen:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        if scaling == "block":
            a_scale = tl.load(a_scale_ptrs + step, mask=present, other=0.0)
            product = tl.dot(x, tl.trans(w))
            # The next scales are asked for a step ahead, as a lone number is not copied ahead by itself.
            next_group = tl.minimum(step + 1, groups - 1)
            if gated:
                acc += product * (a_scale[:, None] * tl.where(is_gate, gate_scale, up_scale)[None, :])
                up_scale = tl.load(up_scale_ptrs + next_group)
            else:
                acc += product * (a_scale * gate_scale)[:, None]
            gate_scale = tl.load(gate_scale_ptrs + next_group)
        else:
            acc = tl.dot(x, tl.trans(w), acc)

    let_next_in(dependent)
    columns = column_block * block_n + tl.arange(0, block_n)
    wanted = columns < n_size
    if gated:
        if gate_step == 2:
            acc, acc_up = tl.split(tl.reshape(acc, (block_m, block_n, 2)))
        else:
            acc, acc_up = tl.split(tl.permute(tl.reshape(acc, (block_m, 2, block_n)), (0, 2, 1)))
    else:
        acc_up = acc
    if scaling == "outer":
        row_scale = tl.load(a_scale_ptrs, mask=present, other=0.0)[:, None]
        w_scale_ptrs = w_scale_ptr + wide_expert * stride_se + columns * gate_step * stride_sn
        acc *= row_scale * tl.load(w_scale_ptrs, mask=wanted, other=0.0)[None, :]
        if gated:
            acc_up *= row_scale * tl.load(w_scale_ptrs + up_offset * stride_sn, mask=wanted, other=0.0)[None, :]
    store_block(
        acc, acc_up, columns, wanted, rows, present, pairs, wide_expert, bias_ptr, weights_ptr, out_ptr,
        stride_om, alpha, limit, n_size, gated, clamped, gate_step, up_offset, has_bias, has_weights,
    )  # fmt: skip
