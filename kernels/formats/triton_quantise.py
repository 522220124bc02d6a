"""Every format's encode as Triton kernels: one pass over memory, or two where one scale serves a whole matrix.

Shapes as in ``base``: x is [..., N, K], here all its rows and K columns, seen as integers. Codes, scales and the sign
of NaN are those of the torch twins (``encode_fp8``, ``encode_mx``, ``encode_nvfp4``) to the bit. Rows are addressed
with 64 bits. ``triton_encode`` launches these.
"""

import triton
import triton.language as tl

from kernels.formats.triton_elements import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    byte_reciprocal,
    divide,
    element_codes,
    fp8_codes,
    fp8_scale,
    known_magnitude,
    nvfp4_scale,
    quotient_sign,
    scale_byte,
    widen_bits,
)


# The number of rows changes from call to call and must not compile a kernel each time.
@triton.jit(do_not_specialize=["num_rows", "rows_a_matrix"])
def quantise_groups_kernel(
    x_ptr,
    code_ptr,
    scale_ptr,
    global_ptr,
    num_rows,
    rows_a_matrix,
    num_columns,
    kind: tl.constexpr,
    family: tl.constexpr,
    element: tl.constexpr,
    rule: tl.constexpr,
    overflow: tl.constexpr,
    infinity: tl.constexpr,
    group: tl.constexpr,
    block_rows: tl.constexpr,
    block_groups: tl.constexpr,
):
    """Groups of 128 (fp8), 32 (mx) or 16 (nvfp4) values along K, each with a scale of its own.

    Example, mxfp4 by ``floor``: a block [2.7, 0.4, 0, ...] has the byte 126 and the codes 7, 2, 0, ...: 3, 0.5, 0.
    """
    rows = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    width: tl.constexpr = group * block_groups
    columns = tl.program_id(1) * width + tl.arange(0, width)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    raw = tl.load(x_ptr + rows[:, None] * num_columns + columns[None, :], mask=mask, other=0)
    bits = tl.reshape(widen_bits(raw, kind), (block_rows, block_groups, group))
    if family == "fp8":
        scale, factor = fp8_scale(tl.max(known_magnitude(bits), 2), element, rule, infinity)
        codes = fp8_codes(bits, factor[:, :, None], element, rule, overflow)
    elif family == "mx":
        scale = scale_byte(tl.max(bits & MAGNITUDE_BITS, 2), element, rule)
        scaled = bits.to(tl.float32, bitcast=True) * byte_reciprocal(scale)[:, :, None]
        codes = element_codes(scaled, quotient_sign(bits, scaled), element, overflow)
    else:
        matrix = rows // rows_a_matrix
        global_scale = tl.load(global_ptr + matrix, mask=rows < num_rows, other=1.0)[:, None]
        scale, step = nvfp4_scale(tl.max(bits & MAGNITUDE_BITS, 2), global_scale)
        scaled = divide(bits.to(tl.float32, bitcast=True), step[:, :, None])
        codes = element_codes(scaled, quotient_sign(bits, scaled), element, overflow)
    groups = tl.program_id(1) * block_groups + tl.arange(0, block_groups)
    num_groups = tl.cdiv(num_columns, group)
    scale_mask = (rows < num_rows)[:, None] & (groups < num_groups)[None, :]
    scale_ptrs = scale_ptr + rows[:, None] * num_groups + groups[None, :]
    tl.store(scale_ptrs, scale.to(scale_ptr.dtype.element_ty), mask=scale_mask)
    codes = tl.reshape(codes, (block_rows, width))
    if element == "e2m1":
        codes = tl.where(mask, codes, 0)
        even, odd = tl.split(tl.reshape(codes, (block_rows, width // 2, 2)))
        codes = even | (odd << 4)
        columns = tl.program_id(1) * (width // 2) + tl.arange(0, width // 2)
        num_columns = tl.cdiv(num_columns, 2)
        mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    tl.store(code_ptr + rows[:, None] * num_columns + columns[None, :], codes.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def quantise_tiles_kernel(
    x_ptr,
    code_ptr,
    scale_ptr,
    amax_ptr,
    num_rows,
    num_columns,
    kind: tl.constexpr,
    element: tl.constexpr,
    rule: tl.constexpr,
    overflow: tl.constexpr,
    infinity: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    """FP8 tiles of matrices of ``num_rows``: each tile with a scale of its own, or all by ``amax_ptr`` of their matrix.

    Example, e4m3_tensor: a matrix of amax 896 holds 1.0 as 30 hex (0.5) with the scale 2.
    """
    row_tiles, column_tiles = tl.cdiv(num_rows, block_rows), tl.num_programs(1)
    matrix, row_tile = (tl.program_id(0) // row_tiles).to(tl.int64), tl.program_id(0) % row_tiles
    rows = row_tile * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    offsets = (matrix * num_rows + rows)[:, None] * num_columns + columns[None, :]
    bits = widen_bits(tl.load(x_ptr + offsets, mask=mask, other=0), kind)
    if amax_ptr is None:
        amax_bits = tl.max(tl.max(known_magnitude(bits), 1), 0)
        scale, factor = fp8_scale(amax_bits, element, rule, infinity)
        tl.store(scale_ptr + (matrix * row_tiles + row_tile) * column_tiles + tl.program_id(1), scale)
    else:
        scale, factor = fp8_scale(tl.load(amax_ptr + matrix), element, rule, infinity)
        tl.store(scale_ptr + matrix, scale, mask=(row_tile == 0) & (tl.program_id(1) == 0))
    tl.store(code_ptr + offsets, fp8_codes(bits, factor, element, rule, overflow).to(tl.uint8), mask=mask)


@triton.jit
def quantise_rows_kernel(
    x_ptr,
    code_ptr,
    scale_ptr,
    num_columns,
    kind: tl.constexpr,
    element: tl.constexpr,
    rule: tl.constexpr,
    overflow: tl.constexpr,
    infinity: tl.constexpr,
    block: tl.constexpr,
):
    """FP8 rows with one scale each; a row is read twice, the second time from cache.

    Example, e4m3_row: a row [448, 1, -2] has the scale 1 and the codes 7E, 38, C0 hex.
    """
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros((block,), dtype=tl.int32)
    for start in range(0, num_columns, block):
        columns = start + tl.arange(0, block)
        raw = tl.load(x_ptr + row * num_columns + columns, mask=columns < num_columns, other=0)
        largest = tl.maximum(largest, known_magnitude(widen_bits(raw, kind)))
    scale, factor = fp8_scale(tl.max(largest, 0), element, rule, infinity)
    tl.store(scale_ptr + row, scale)
    for start in range(0, num_columns, block):
        columns = start + tl.arange(0, block)
        mask = columns < num_columns
        raw = tl.load(x_ptr + row * num_columns + columns, mask=mask, other=0)
        codes = fp8_codes(widen_bits(raw, kind), factor, element, rule, overflow)
        tl.store(code_ptr + row * num_columns + columns, codes.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def amax_kernel(
    x_ptr,
    amax_ptr,
    num_rows,
    num_columns,
    kind: tl.constexpr,
    group: tl.constexpr,
    block_rows: tl.constexpr,
    block_groups: tl.constexpr,
):
    """Bits of each matrix's largest magnitude, taken into ``amax_ptr`` (int32, zeros); groups with NaN do not count.

    Example, groups of 1: [[2, NaN]] gives 40000000 hex (2.0); groups of 2: 0. The order of the programs is no matter.
    """
    row_tiles = tl.cdiv(num_rows, block_rows)
    matrix, row_tile = (tl.program_id(0) // row_tiles).to(tl.int64), tl.program_id(0) % row_tiles
    rows = row_tile * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * (block_groups * group) + tl.arange(0, block_groups * group)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    offsets = (matrix * num_rows + rows)[:, None] * num_columns + columns[None, :]
    magnitude = widen_bits(tl.load(x_ptr + offsets, mask=mask, other=0), kind) & MAGNITUDE_BITS
    if group > 1:
        magnitude = tl.max(tl.reshape(magnitude, (block_rows, block_groups, group)), 2)
    largest = tl.max(tl.max(tl.where(magnitude > INFINITY_BITS, 0, magnitude), 1), 0)
    tl.atomic_max(amax_ptr + matrix, largest)
