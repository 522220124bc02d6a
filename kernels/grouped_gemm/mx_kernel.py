"""The expert GEMMs over MXFP8 weights on GPUs that cannot scale blocks inside a product: decoded in registers to BF16.

What surrounds the product is ``expert_kernels``'s. P rows (pairs), E experts, N output columns, K reduced.
E4M3 products of 32 of K, scaled one by one, were slower on an H200 from 1 to 16,384 tokens: each is waited for.
"""

import triton
import triton.language as tl

from kernels.dependent import LINE_BYTES, ask_ahead, let_next_in, wait_for_inputs
from kernels.grouped_gemm.expert_kernels import LINES_AHEAD, rows_of_block, store_block, tile_of_program

# Of two words the even codes, then the odd ones, to BF16 times 2^-120 as their bits lie, then times the factors.
_WORDS_TO_BF16 = """
{
.reg .b32 x, y;
shl.b32 x, $2, 8;
shl.b32 y, $2, 4;
and.b32 y, y, 0x07F007F0;
lop3.b32 y, x, 0x80008000, y, 0xEA;
mul.bf16x2 $0, y, $3;
shr.b32 y, $2, 4;
and.b32 y, y, 0x07F007F0;
lop3.b32 y, $2, 0x80008000, y, 0xEA;
mul.bf16x2 $1, y, $3;
}
"""
WORDS_TO_BF16 = tl.constexpr(_WORDS_TO_BF16)


@triton.jit
def decode_code_words(words, scales, widen: tl.constexpr):
    """The even and the odd codes, BF16 (float32 if ``widen``), of words of two E4M3 codes, int16 [N, 64].

    ``scales``: int32 [N], a byte for each 16 words, the lowest first; 0 to 127 stand for 2^-127 to 1.
    Example: the word B838 hex by the byte 126 is 0.5 and -0.5.
    """
    # Joined and spread, not shifted by column, lest the compiler send the factors through shared memory.
    both = tl.join(scales, scales >> 16)
    four = tl.reshape(tl.join(both, both >> 8), (words.shape[0], 4))
    byte = tl.reshape(tl.broadcast_to(four[:, :, None], (words.shape[0], 4, 16)), words.shape) & 0xFF
    if widen:
        bits = words.to(tl.int32)
        factor = (byte << 23).to(tl.float32, bitcast=True) * 1.329227995784916e36
        even = (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True) * factor
        odd = (((bits & 0x8000) << 16) | ((bits & 0x7F00) << 12)).to(tl.float32, bitcast=True) * factor
    else:
        factor = ((byte + 120) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
        even, odd = tl.inline_asm_elementwise(
            WORDS_TO_BF16,
            "=r,=r,r,r",
            [words, factor],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    return even, odd


@triton.jit(do_not_specialize=["num_blocks", "num_experts"])
def mx_expert_kernel(
    a_ptr, w_ptr, w_scale_ptr, column_scale_ptr, bias_ptr, out_ptr,
    order_ptr, weights_ptr, offsets_ptr, experts_ptr, starts_ptr,
    num_blocks, num_experts, alpha, limit, stride_am, stride_wn, stride_om,
    n_size: tl.constexpr, k_size: tl.constexpr, top_k: tl.constexpr,
    gated: tl.constexpr, clamped: tl.constexpr, gate_step: tl.constexpr, up_offset: tl.constexpr,
    has_bias: tl.constexpr, has_weights: tl.constexpr, direct: tl.constexpr, has_order: tl.constexpr,
    widen: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, group_m: tl.constexpr, num_stages: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    """MXFP8 weights (``packed_mx8``) as words of two codes, by BF16 rows whose every 128 hold the 64 even ones first.

    The weights are wgmma's first operand, from registers; the rows hold MXFP8 values exactly (``triton_rows_mx``).
    Torch twin of the decoding: ``packed_mx8.unpack_mxfp8``; of the whole: ``kernels.moe.moe_layer`` with backend torch.
    Example: x = [[1, 2]], w = [[[1, 1]]]: out [[3]].
    """
    row_block, column_block = tile_of_program(num_blocks, (n_size + block_n - 1) // block_n, group_m)
    columns = column_block * block_n + tl.arange(0, block_n)
    if dependent and direct:
        # The experts may not be known yet: what is asked for then is of no use, and does no harm.
        guess = tl.load(experts_ptr + row_block, volatile=True)
        if (guess >= 0) & (guess < num_experts):
            line = tl.minimum(tl.arange(0, LINES_AHEAD) * (LINE_BYTES // 2), k_size // 2 - 1)
            rows_ahead = (
                guess.to(tl.int64) * (n_size * (2 if gated else 1)) + tl.minimum(columns, n_size - 1) * gate_step
            )
            ahead = w_ptr + rows_ahead[:, None] * stride_wn + line[None, :]
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
    steps: tl.constexpr = (k_size + 127) // 128
    wanted = columns < n_size if n_size % block_n else columns >= 0
    a_rows = pairs // top_k if gated else rows
    w_rows = expert.to(tl.int64) * (n_size * (2 if gated else 1)) + columns * gate_step
    k_index = tl.arange(0, 64)
    a_ptrs = a_ptr + a_rows[:, None] * stride_am + k_index[None, :]
    w_ptrs = w_ptr + w_rows[:, None] * stride_wn + k_index[None, :]
    s_ptrs = w_scale_ptr + w_rows * steps
    acc = tl.zeros((block_n, block_m), dtype=tl.float32)
    acc_up = acc
    for step in tl.range(steps, num_stages=num_stages):
        k_mask = k_index < (64 if k_size % 128 == 0 else (k_size + 1) // 2 - step * 64)
        a_even = tl.load(a_ptrs, mask=present[:, None], other=0.0)
        a_odd = tl.load(a_ptrs + 64, mask=present[:, None], other=0.0)
        if widen:
            a_even = a_even.to(tl.float32)
            a_odd = a_odd.to(tl.float32)
        words = tl.load(w_ptrs, mask=wanted[:, None] & k_mask[None, :], other=0)
        scales = tl.load(s_ptrs + step, mask=wanted, other=0)
        even, odd = decode_code_words(words, scales, widen)
        acc = tl.dot(even, tl.trans(a_even), acc)
        acc = tl.dot(odd, tl.trans(a_odd), acc)
        if gated:
            words = tl.load(w_ptrs + up_offset * stride_wn, mask=wanted[:, None] & k_mask[None, :], other=0)
            scales = tl.load(s_ptrs + up_offset * steps + step, mask=wanted, other=0)
            even, odd = decode_code_words(words, scales, widen)
            acc_up = tl.dot(even, tl.trans(a_even), acc_up)
            acc_up = tl.dot(odd, tl.trans(a_odd), acc_up)
        a_ptrs += 128
        w_ptrs += 64

    let_next_in(dependent)
    acc *= tl.load(column_scale_ptr + w_rows, mask=wanted, other=0.0)[:, None]
    if gated:
        acc_up *= tl.load(column_scale_ptr + w_rows + up_offset, mask=wanted, other=0.0)[:, None]
    store_block(
        tl.trans(acc), tl.trans(acc_up), columns, wanted, rows, present, pairs, expert, bias_ptr, weights_ptr, out_ptr,
        stride_om, alpha, limit, n_size, gated, clamped, gate_step, up_offset, has_bias, has_weights,
    )  # fmt: skip
