"""Encode on a GPU by the kernels of ``triton_quantise``; the formats' own ``encode`` calls this for CUDA tensors.

Nothing waits for the device, so a CUDA graph can capture all of it.
"""

import torch
import triton
from torch import Tensor

from kernels.formats.triton_quantise import (
    amax_kernel,
    quantise_groups_kernel,
    quantise_rows_kernel,
    quantise_tiles_kernel,
)

GROUPS = {"fp8": 128, "mx": 32, "nvfp4": 16}
TILE_ROWS, TILE_COLUMNS = 128, 128
FLOAT32_MAX = torch.finfo(torch.float32).max
_KINDS = {
    torch.bfloat16: ("bf16", torch.int16),
    torch.float16: ("f16", torch.int16),
    torch.float32: ("f32", torch.int32),
}


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
