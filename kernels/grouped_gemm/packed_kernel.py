"""The expert GEMMs over FP4 weights in their streaming form: decoded in registers, multiplied in BF16.

The layout is ``packed``'s; what surrounds the product is ``expert_kernels``'s. P rows (pairs), N columns, K reduced.
"""

import triton
import triton.language as tl

from kernels.dependent import LINE_BYTES, ask_ahead, let_next_in, wait_for_inputs
from kernels.grouped_gemm.expert_kernels import LINES_AHEAD, rows_of_block, store_block, tile_of_program

_FIELDS_TO_BF16 = """
{
.reg .b32 t, u;
and.b32 t, $4, 0x81C081C0;
mul.bf16x2 $0, t, $5;
shl.b32 t, $4, 3;
and.b32 t, t, 0x81C081C0;
mul.bf16x2 $1, t, $6;
shl.b32 t, $4, 6;
shl.b32 u, $4, 2;
and.b32 t, t, 0x01C001C0;
and.b32 u, u, 0x80008000;
or.b32 t, t, u;
mul.bf16x2 $2, t, $7;
shr.b32 t, $4, 3;
shl.b32 u, $4, 1;
and.b32 t, t, 0x01C001C0;
and.b32 u, u, 0x80008000;
or.b32 t, t, u;
mul.bf16x2 $3, t, $8;
}
"""
FIELDS_TO_BF16 = tl.constexpr(_FIELDS_TO_BF16)
FIELD_CONSTRAINTS = tl.constexpr("=r,=r,=r,=r,r,r,r,r,r")


@triton.jit
def decode_words(words, scales, nvfp4: tl.constexpr, widen: tl.constexpr):
    """Four tiles of BF16 (float32 if ``widen``) from words [N, 32] and scale words [N] or [N, 2]; see ``packed``."""
    if nvfp4:
        spread = tl.broadcast_to(scales[:, :, None], (words.shape[0], 2, 16))
        scales = tl.reshape(spread, words.shape)
    else:
        scales = tl.broadcast_to(scales[:, None], words.shape)
    s0 = _factor(scales, nvfp4, widen)
    s1 = _factor(scales >> 8, nvfp4, widen)
    s2 = _factor(scales >> 16, nvfp4, widen)
    s3 = _factor(scales >> 24, nvfp4, widen)
    if widen:
        t = words.to(tl.int32) & 0xFFFF
        w0 = ((t & 0x81C0) << 16).to(tl.float32, bitcast=True) * s0
        w1 = (((t << 3) & 0x81C0) << 16).to(tl.float32, bitcast=True) * s1
        w2 = ((((t << 6) & 0x01C0) | ((t << 2) & 0x8000)) << 16).to(tl.float32, bitcast=True) * s2
        w3 = ((((t >> 3) & 0x01C0) | ((t << 1) & 0x8000)) << 16).to(tl.float32, bitcast=True) * s3
        return w0, w1, w2, w3
    return tl.inline_asm_elementwise(
        FIELDS_TO_BF16,
        FIELD_CONSTRAINTS,
        [words, s0, s1, s2, s3],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _factor(scales, nvfp4: tl.constexpr, widen: tl.constexpr):
    """The lowest byte as a factor, BF16 or float32."""
    bits = ((scales & 0xFF) << 4) + (224 << 7) if nvfp4 else (scales & 0xFF) << 7
    if widen:
        return (bits << 16).to(tl.float32, bitcast=True)
    return bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit(do_not_specialize=["num_blocks", "num_experts"])
def packed_expert_kernel(
    a_ptr, words_ptr, scales_ptr, column_scale_ptr, bias_ptr, out_ptr,
    order_ptr, weights_ptr, offsets_ptr, experts_ptr, starts_ptr,
    num_blocks, num_experts, alpha, limit, stride_am, stride_om,
    n_size: tl.constexpr, k_size: tl.constexpr, top_k: tl.constexpr,
    gated: tl.constexpr, clamped: tl.constexpr, gate_step: tl.constexpr, up_offset: tl.constexpr,
    nvfp4: tl.constexpr, has_bias: tl.constexpr, has_weights: tl.constexpr,
    direct: tl.constexpr, has_order: tl.constexpr, widen: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, group_m: tl.constexpr, num_stages: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    """FP4 weights (``packed.PackedWeights``) by BF16 rows; the weights are wgmma's first operand, from registers.

    Torch twin of the decoding: ``packed.unpack_weights``; of the whole: ``kernels.moe.moe_layer`` with backend torch.
    Example: one expert, w = [[1, 0, ...]], x = [[3, 7, ...]]: out [[3]].
    """
    columns_of_tiles: tl.constexpr = (n_size + 63) // 64
    steps: tl.constexpr = (k_size + 127) // 128
    halves: tl.constexpr = 2 if nvfp4 else 1
    row_block, column_block = tile_of_program(num_blocks, (n_size + block_n - 1) // block_n, group_m)
    columns = column_block * block_n + tl.arange(0, block_n)
    if dependent and direct:
        # The experts may not be known yet: what is asked for then is of no use, and does no harm.
        guess = tl.load(experts_ptr + row_block, volatile=True)
        if (guess >= 0) & (guess < num_experts):
            # 64 columns by 128 of K are 4,096 bytes in one piece, and the next of K follow them.
            parts: tl.constexpr = 2 if gated else 1
            line = tl.minimum(tl.arange(0, LINES_AHEAD * 32) * (LINE_BYTES // 2), steps * 2048 - 1)
            for piece in tl.static_range((block_n + 63) // 64):
                tile_ahead = tl.minimum(column_block * block_n // 64 + piece, columns_of_tiles - 1)
                for part in tl.static_range(parts):
                    first_ahead = (guess.to(tl.int64) * parts + part) * columns_of_tiles + tile_ahead
                    ask_ahead(words_ptr + first_ahead * steps * 2048 + line)
    wait_for_inputs(dependent)
    expert = tl.load(experts_ptr + row_block)
    if (expert < 0) | (expert >= num_experts):
        return
    rows, present, pairs = rows_of_block(
        row_block, expert, order_ptr, starts_ptr, offsets_ptr, block_m, direct, has_order
    )
    expert = expert.to(tl.int64)
    if gated:
        a_rows = pairs // top_k
        first = (expert * 2 * columns_of_tiles) * steps
    else:
        a_rows = rows
        first = (expert * columns_of_tiles) * steps
    k_index = tl.arange(0, 32)
    a_ptrs = a_ptr + a_rows[:, None] * stride_am + k_index[None, :]
    stored = (columns < columns_of_tiles * 64) if (n_size + 63) // 64 * 64 % block_n else (columns >= 0)
    tile = columns // 64 * steps
    w_ptrs = words_ptr + (first + tile)[:, None] * 2048 + (columns % 64)[:, None] * 32 + k_index[None, :]
    s_ptrs = scales_ptr + (first + tile) * (64 * halves) + columns % 64 * halves
    s_stored = stored
    if nvfp4:
        s_ptrs = s_ptrs[:, None] + tl.arange(0, 2)[None, :]
        s_stored = stored[:, None]
    acc = tl.zeros((block_n, block_m), dtype=tl.float32)
    acc_up = tl.zeros((block_n, block_m), dtype=tl.float32)
    for step in tl.range(steps, num_stages=num_stages):
        k_left = k_size - step * 128
        if k_size % 128:
            a0 = tl.load(a_ptrs, mask=present[:, None] & (k_index[None, :] < k_left), other=0.0)
            a1 = tl.load(a_ptrs + 32, mask=present[:, None] & (k_index[None, :] + 32 < k_left), other=0.0)
            a2 = tl.load(a_ptrs + 64, mask=present[:, None] & (k_index[None, :] + 64 < k_left), other=0.0)
            a3 = tl.load(a_ptrs + 96, mask=present[:, None] & (k_index[None, :] + 96 < k_left), other=0.0)
        else:
            a0 = tl.load(a_ptrs, mask=present[:, None], other=0.0)
            a1 = tl.load(a_ptrs + 32, mask=present[:, None], other=0.0)
            a2 = tl.load(a_ptrs + 64, mask=present[:, None], other=0.0)
            a3 = tl.load(a_ptrs + 96, mask=present[:, None], other=0.0)
        if widen:
            a0 = a0.to(tl.float32)
            a1 = a1.to(tl.float32)
            a2 = a2.to(tl.float32)
            a3 = a3.to(tl.float32)
        words = tl.load(w_ptrs, mask=stored[:, None], other=0)
        scales = tl.load(s_ptrs, mask=s_stored, other=0)
        w0, w1, w2, w3 = decode_words(words, scales, nvfp4, widen)
        acc = tl.dot(w0, tl.trans(a0), acc)
        acc = tl.dot(w1, tl.trans(a1), acc)
        acc = tl.dot(w2, tl.trans(a2), acc)
        acc = tl.dot(w3, tl.trans(a3), acc)
        if gated:
            words = tl.load(w_ptrs + columns_of_tiles * steps * 2048, mask=stored[:, None], other=0)
            scales = tl.load(s_ptrs + columns_of_tiles * steps * 64 * halves, mask=s_stored, other=0)
            w0, w1, w2, w3 = decode_words(words, scales, nvfp4, widen)
            acc_up = tl.dot(w0, tl.trans(a0), acc_up)
            acc_up = tl.dot(w1, tl.trans(a1), acc_up)
            acc_up = tl.dot(w2, tl.trans(a2), acc_up)
            acc_up = tl.dot(w3, tl.trans(a3), acc_up)
        a_ptrs += 128
        w_ptrs += 2048
        s_ptrs += 64 * halves

    let_next_in(dependent)
    wanted = columns < n_size
    parts: tl.constexpr = 2 if gated else 1
    scale_ptrs = column_scale_ptr + expert * parts * columns_of_tiles * 64 + columns
    acc *= tl.load(scale_ptrs, mask=stored, other=0.0)[:, None]
    if gated:
        acc_up *= tl.load(scale_ptrs + columns_of_tiles * 64, mask=stored, other=0.0)[:, None]
    store_block(
        tl.trans(acc), tl.trans(acc_up), columns, wanted, rows, present, pairs, expert, bias_ptr, weights_ptr, out_ptr,
        stride_om, alpha, limit, n_size, gated, clamped, gate_step, up_offset, has_bias, has_weights,
    )  # fmt: skip
