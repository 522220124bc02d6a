"""The backward kernels compiled for a GPU that need not be here (see ``kernels.compile``)."""

from collections.abc import Callable
from functools import partial

import triton

from kernels.compile import Compiled, compile_kernel
from kernels.grouped_gemm import triton_dgrad, triton_wgrad

ELEMENTS = {"bf16": "*bf16", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5"}
FP8 = (("e5m2", "block"), ("e5m2", "tensor"), ("e4m3", "block"))


def backward_kernels(*, capability: int, n_size: int = 4096) -> dict[str, Callable[[], Compiled]]:
    """Every backward kernel as it is launched for sizes that are multiples of 16, by name, to be compiled when called.

    ``n_size``: columns that dgrad reduces. FP8 kernels raise ValueError below 8.9.
    """
    jobs: dict[str, Callable[[], Compiled]] = {
        "wgrad bf16": partial(_wgrad_bf16, capability),
        "wgrad bf16 of one column": partial(_wgrad_bf16, capability, stride_x=1),
    }
    for mean, tile in triton_dgrad.TILES["bf16"]:
        jobs[f"dgrad bf16 {mean}"] = partial(_dgrad, capability, tile, n_size, "bf16", "none")
    for element, scales in FP8:
        jobs[f"wgrad {element} {scales}"] = partial(_wgrad_fp8, capability, element, blocked=scales == "block")
        for mean, tile in triton_dgrad.TILES["fp8"]:
            jobs[f"dgrad {element} {scales} {mean}"] = partial(_dgrad, capability, tile, n_size, element, scales)
    for element in ("e4m3", "e5m2"):
        for encoded in (False, True):
            jobs[f"turn {element} {encoded}"] = partial(_turn, capability, element, encoded=encoded)
    return jobs


def _wgrad_bf16(capability: int, *, stride_x: int | None = None) -> Compiled:
    tile = triton_wgrad.TILES["bf16"]
    pointers = {"g_ptr": "*bf16", "x_ptr": "*bf16", "out_ptr": "*fp32", "offsets_ptr": "*i64"}
    blocks = {"block_n": tile.block_n, "block_k": tile.block_k, "block_m": tile.block_m, "widen": False}
    if stride_x is not None:
        blocks |= {"stride_x": stride_x}  # a bias is the gradient of a column of ones, whose stride is a constant
    return _compile(triton_wgrad.wgrad_kernel, pointers, blocks, capability, tile)


def _wgrad_fp8(capability: int, element: str, *, blocked: bool) -> Compiled:
    tile = triton_wgrad.TILES["fp8"]
    pointers = {"g_ptr": ELEMENTS[element], "x_ptr": ELEMENTS["e4m3"], "out_ptr": "*fp32", "group_ends_ptr": "*i64"}
    pointers |= {"g_scale_ptr": "*fp32", "x_scale_ptr": "*fp32"}
    blocks = {"block_n": tile.block_n, "block_k": tile.block_k, "blocked": blocked, "widen": False}
    return _compile(triton_wgrad.wgrad_fp8_kernel, pointers, blocks, capability, tile)


def _dgrad(capability: int, tile: triton_dgrad.DgradTile, n_size: int, element: str, scales: str) -> Compiled:
    weights = "bf16" if element == "bf16" else "e4m3"
    pointers = {"g_ptr": ELEMENTS[element], "w_ptr": ELEMENTS[weights], "out_ptr": "*bf16", "offsets_ptr": "*i64"}
    pointers |= {"block_expert_ptr": "*i32", "block_start_ptr": "*i64"}
    constants: dict[str, object] = {"block_m": tile.block_m, "block_k": tile.block_k, "block_n": tile.block_n}
    constants |= {"n_size": n_size, "scales": scales, "widen": False}
    # A stride of 1 is a constant at launch: BF16 weights lie as forward reads them, FP8 ones transposed.
    constants |= {"stride_wk": 1} if element == "bf16" else {"stride_wn": 1}
    if element == "bf16":
        constants |= {"g_scale_ptr": None, "w_scale_ptr": None}
    else:
        pointers |= {"g_scale_ptr": "*fp32", "w_scale_ptr": "*fp32"}
    return _compile(triton_dgrad.dgrad_kernel, pointers, constants, capability, tile, unaligned=("num_blocks",))


def _turn(capability: int, element: str, *, encoded: bool) -> Compiled:
    pointers = {"x_ptr": "*u8" if encoded else "*bf16", "code_ptr": "*u8", "scale_ptr": "*fp32", "offsets_ptr": "*i64"}
    pointers |= {"group_expert_ptr": "*i32", "group_start_ptr": "*i64"}
    constants = {"encoded": encoded, "e5m2": element == "e5m2", "block_columns": 32, "by_hand": False}
    return _compile(triton_wgrad.turn_rows_kernel, pointers, constants, capability)


def _compile(
    kernel: triton.JITFunction,
    pointers: dict[str, str],
    constants: dict[str, object],
    capability: int,
    tile: triton_wgrad.WgradTile | triton_dgrad.DgradTile | None = None,
    *,
    unaligned: tuple[str, ...] = (),
) -> Compiled:
    integers = {name: "i32" for name in kernel.arg_names if name not in pointers | constants}
    return compile_kernel(
        kernel,
        signature=pointers | integers,
        constexprs=constants,
        capability=capability,
        multiples_of_16=tuple(name for name in integers if name not in unaligned),
        num_warps=tile.num_warps if tile else 4,
        num_stages=tile.num_stages if tile else 3,
    )
