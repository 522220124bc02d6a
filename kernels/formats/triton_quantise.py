"""Every format's encode as a Triton kernel: one pass over memory, or two where one scale serves a whole matrix.

Shapes as in ``base``: x is [..., N, K], R all its rows, K columns. Codes, scales and the sign of NaN are those of the
torch twins (``encode_fp8``, ``encode_mx``, ``encode_nvfp4``) to the bit. Nothing waits for the device, so a CUDA graph
can capture all of it. Rows are addressed with 64 bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.formats.triton_elements import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    byte_reciprocal,
    divide,
    element_codes,
    fp8_codes,
    fp8_scale,
    known_magnitude,
    scale_byte,
    widen_bits,
)

GROUPS = {"fp8": 128, "mx": 32, "nvfp4": 16}
TILE_ROWS, TILE_COLUMNS = 128, 128
FLOAT32_MAX = torch.finfo(torch.float32).max
_KINDS = {
    torch.bfloat16: ("bf16", torch.int16),
    torch.float16: ("f16", torch.int16),
    torch.float32: ("f32", torch.int32),
}


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
    value, negative = bits.to(tl.float32, bitcast=True), (bits >> 31) & 1
    if family == "fp8":
        scale, factor = fp8_scale(tl.max(known_magnitude(bits), 2), element, rule, infinity)
        codes = fp8_codes(bits, factor[:, :, None], element, rule, overflow)
    elif family == "mx":
        scale = scale_byte(tl.max(bits & MAGNITUDE_BITS, 2), element, rule)
        scaled = value * byte_reciprocal(scale)[:, :, None]
        # A number over a NaN scale is the NaN of the scale, which is positive.
        negative = tl.where((scaled != scaled) & (value == value), 0, negative)
        codes = element_codes(scaled, negative, element, overflow)
    else:
        matrix = rows // rows_a_matrix
        global_scale = tl.load(global_ptr + matrix, mask=rows < num_rows, other=1.0)[:, None]
        amax_bits = tl.max(bits & MAGNITUDE_BITS, 2)
        amax = amax_bits.to(tl.float32, bitcast=True)
        amax = tl.where(amax_bits == INFINITY_BITS, infinity, amax)
        wanted = divide(amax, 6.0) * global_scale
        # Not tl.maximum, which would drop NaN.
        wanted = tl.where(wanted < 0.001953125, 0.001953125, wanted)
        scale = element_codes(wanted, tl.zeros_like(amax_bits), "e4m3", "saturate")
        step = (scale << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
        step = tl.where(scale == 0x7F, float("nan"), divide(step, global_scale))
        scaled = divide(value, step[:, :, None])
        negative = tl.where((scaled != scaled) & (value == value), 0, negative)
        codes = element_codes(scaled, negative, element, overflow)
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


def triton_encode_fp8(
    x: Tensor, *, element: str, granularity: str, weights: bool, scale_rule: str, overflow: str
) -> tuple[Tensor, Tensor]:
    """(codes, float32 scale) as ``encode_fp8`` stores them, of a tensor that is not empty."""
    *lead, num_rows, num_columns = x.shape
    kind, raw = _raw(x)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    names = {"kind": kind, "element": element, "rule": scale_rule, "overflow": overflow}
    names["infinity"] = torch.finfo(x.dtype).max
    if granularity == "row":
        scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        block = min(4096, triton.next_power_of_2(num_columns))
        with torch.cuda.device_of(x):
            quantise_rows_kernel[(scale.numel(),)](raw, codes, scale, num_columns, **names, block=block)
        return codes, scale
    if granularity == "block" and not weights:
        return codes, _launch_groups(x, raw, codes, torch.float32, "fp8", None, names)
    amax = _amax(x, group=1) if granularity == "tensor" else None
    row_tiles, column_tiles = triton.cdiv(num_rows, TILE_ROWS), triton.cdiv(num_columns, TILE_COLUMNS)
    scale_shape = lead if granularity == "tensor" else (*lead, row_tiles, column_tiles)
    scale = torch.empty(scale_shape, dtype=torch.float32, device=x.device)
    tile = {"block_rows": TILE_ROWS, "block_columns": TILE_COLUMNS, "num_warps": 8}
    grid = (x.numel() // (num_rows * num_columns) * row_tiles, column_tiles)
    with torch.cuda.device_of(x):
        quantise_tiles_kernel[grid](raw, codes, scale, amax, num_rows, num_columns, **names, **tile)
    return codes, scale


def triton_encode_mx(x: Tensor, *, name: str, scale_rule: str, overflow: str) -> tuple[Tensor, Tensor]:
    """(codes or packed codes, E8M0 bytes) as ``encode_mx`` stores them, of a tensor that is not empty."""
    kind, raw = _raw(x)
    element = "e2m1" if name == "mxfp4" else "e4m3"
    columns = triton.cdiv(x.shape[-1], 2) if name == "mxfp4" else x.shape[-1]
    codes = torch.empty(*x.shape[:-1], columns, dtype=torch.uint8, device=x.device)
    names = {"kind": kind, "element": element, "rule": scale_rule, "overflow": overflow, "infinity": FLOAT32_MAX}
    return codes, _launch_groups(x, raw, codes, torch.uint8, "mx", None, names)


def triton_encode_nvfp4(x: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """(packed codes, E4M3 scales) as ``encode_nvfp4`` stores them by a global scale a matrix [...]; x is not empty."""
    kind, raw = _raw(x)
    codes = torch.empty(*x.shape[:-1], triton.cdiv(x.shape[-1], 2), dtype=torch.uint8, device=x.device)
    names = {"kind": kind, "element": "e2m1", "rule": "none", "overflow": "saturate", "infinity": FLOAT32_MAX}
    return codes, _launch_groups(x, raw, codes, torch.uint8, "nvfp4", global_scale.contiguous(), names)


def triton_matrix_amax(x: Tensor, *, group: int) -> Tensor:
    """float32 [...]: the largest magnitude of each matrix, groups along K that hold NaN passed over; x is not empty."""
    return _amax(x, group=group).view(torch.float32)


def _raw(x: Tensor) -> tuple[str, Tensor]:
    """The name of the dtype, and the values seen as integers, rows without gaps."""
    kind, integer = _KINDS[x.dtype]
    return kind, x.detach().contiguous().view(integer)


def _tile(num_columns: int, group: int) -> dict[str, int]:
    """4,096 elements a program, and no more groups across than the rows have."""
    block_groups = min(triton.next_power_of_2(triton.cdiv(num_columns, group)), max(1, 512 // group))
    return {"group": group, "block_rows": 4096 // (group * block_groups), "block_groups": block_groups}


def _launch_groups(
    x: Tensor,
    raw: Tensor,
    codes: Tensor,
    scale_dtype: torch.dtype,
    family: str,
    global_scale: Tensor | None,
    names: dict[str, str | float],
) -> Tensor:
    """Run the kernel into ``codes`` and return the scales [..., N, ceil(K / group)]."""
    num_rows, num_columns = x.shape[-2:]
    tile = _tile(num_columns, GROUPS[family])
    scale = torch.empty(*x.shape[:-1], triton.cdiv(num_columns, tile["group"]), dtype=scale_dtype, device=x.device)
    all_rows = x.numel() // num_columns
    across = triton.cdiv(num_columns, tile["group"] * tile["block_groups"])
    with torch.cuda.device_of(x):
        quantise_groups_kernel[(triton.cdiv(all_rows, tile["block_rows"]), across)](
            raw, codes, scale, global_scale, all_rows, num_rows, num_columns, family=family, **names, **tile
        )
    return scale


def _amax(x: Tensor, *, group: int) -> Tensor:
    """Bits, int32 [...], of the largest magnitude of each matrix, infinity included and NaN not."""
    num_rows, num_columns = x.shape[-2:]
    kind, raw = _raw(x)
    tile = _tile(num_columns, group)
    amax = torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)
    grid = (
        amax.numel() * triton.cdiv(num_rows, tile["block_rows"]),
        triton.cdiv(num_columns, group * tile["block_groups"]),
    )
    with torch.cuda.device_of(x):
        amax_kernel[grid](raw, amax, num_rows, num_columns, kind=kind, **tile)
    return amax
