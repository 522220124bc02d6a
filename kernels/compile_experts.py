"""Types and constants of the expert GEMMs as ``expert_gemm`` launches them, for ``compile``."""

import triton

from kernels.grouped_gemm.expert_gemm import SCALING
from kernels.grouped_gemm.expert_kernels import dense_expert_kernel
from kernels.grouped_gemm.mx_kernel import mx_expert_kernel
from kernels.grouped_gemm.packed_kernel import packed_expert_kernel
from kernels.grouped_gemm.scaled_kernel import scaled_expert_kernel
from kernels.grouped_gemm.tiles import Tile, family
from kernels.grouped_gemm.tma_kernel import tma_expert_kernel

Types = dict[str, str | None]
"""The type of each argument, such as ``*bf16``; None for a pointer that is not given."""


def kernel_of(weights_format: str, tile: Tile) -> triton.JITFunction:
    """The kernel of a GPU that does not scale blocks itself."""
    packed = {"fp4": packed_expert_kernel, "mx8": mx_expert_kernel}
    return packed.get(family(weights_format), tma_expert_kernel if tile.tma else dense_expert_kernel)


def operand_types(
    kernel: triton.JITFunction, weights_format: str, tile: Tile, *, gated: bool, interleaved: bool
) -> Types:
    """Rows, weights and their scales."""
    if kernel is scaled_expert_kernel:
        scale, divisor = ("*fp8e4nv", "*fp32") if weights_format == "nvfp4" else ("*u8", None)
        types: Types = dict.fromkeys(("a_ptr", "w_ptr"), "*u8")
        return (
            types
            | dict.fromkeys(("a_scale_ptr", "w_scale_ptr"), scale)
            | dict.fromkeys(("a_global_ptr", "w_global_ptr"), divisor)
        )
    words = kernel is mx_expert_kernel
    narrow = kernel in (dense_expert_kernel, tma_expert_kernel) and weights_format != "bf16"
    element, scale = "*fp8e4nv" if narrow else "*bf16", None if weights_format == "bf16" else "*fp32"
    types = {"a_ptr": element, "w_ptr": "*i16" if words else element, "a_scale_ptr": scale, "column_scale_ptr": scale}
    types |= {"w_scale_ptr": "*i32" if words else scale, "words_ptr": "*i16", "scales_ptr": "*i32"}
    parts, columns = (1, 2 * tile.block_n) if interleaved else (2 if gated else 1, tile.block_n)
    types["w_desc"] = f"tensordesc<{element[1:]}[{parts}, {columns}, {tile.block_k}]>"
    types["a"] = element if gated else f"tensordesc<{element[1:]}[{tile.block_m}, {tile.block_k}]>"
    return types


def routing_types(*, gated: bool, has_bias: bool, direct: bool) -> Types:
    """What surrounds the product: order, blocks, routing weights, bias, output."""
    types: Types = {"bias_ptr": "*bf16" if has_bias else None, "weights_ptr": None if gated else "*fp32"}
    types |= {"order_ptr": None if direct else "*i64", "experts_ptr": "*i32", "out_ptr": "*bf16"}
    types |= dict.fromkeys(("offsets_ptr", "starts_ptr"), None if direct else "*i64")
    return types | {"alpha": "fp32", "limit": "fp32", "out_scale_ptr": None}


def shape_constants(weights_format: str, tile: Tile, *, gated: bool, n_size: int, gpt_oss: bool) -> dict[str, object]:
    """Constants of every expert kernel by name; ``gpt_oss``: interleaved, clamped, with biases."""
    interleaved = gated and gpt_oss
    one_scale = not interleaved and (not gated or n_size % 128 == 0) and 128 % tile.block_n == 0
    constants: dict[str, object] = {"n_size": n_size, "top_k": 8, "gated": gated, "clamped": gpt_oss, "widen": False}
    constants |= {"gate_step": 2 if interleaved else 1, "up_offset": (1 if interleaved else n_size) if gated else 0}
    constants |= {"has_bias": gpt_oss, "has_weights": not gated, "swap": tile.swap, "num_stages": tile.num_stages}
    constants |= {"block_m": tile.block_m, "block_n": tile.block_n, "block_k": tile.block_k, "group_m": tile.group_m}
    constants |= {"scaling": SCALING.get(weights_format, "none"), "tile_scale": one_scale, "a_is_desc": not gated}
    nvfp4 = weights_format == "nvfp4"
    return constants | {"nvfp4": nvfp4, "group": 16 if nvfp4 else 32}
