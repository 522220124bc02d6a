"""Compile Triton kernels to PTX and machine code for a GPU that need not be here.

So the build machine can say whether a kernel compiles for a capability, fits its shared memory, and which
instruction multiplies. Not usable under TRITON_INTERPRET=1.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.backend import SCALED_MAJOR, SCALED_PAIRS, scales_itself
from kernels.compile_experts import kernel_of, operand_types, routing_types, shape_constants
from kernels.dependent import DEPENDENT_CAPABILITY
from kernels.grouped_gemm.expert_gemm import ELEMENTS
from kernels.grouped_gemm.scaled_kernel import scaled_expert_kernel
from kernels.grouped_gemm.tiles import LAYER_TILES, Tile, choose_tile, family
from kernels.grouped_gemm.triton_gemm import block_table_kernel, grouped_gemm_kernel
from kernels.triton_rows import activation_kernel, combine_kernel, quantise_block_kernel

# Most shared memory of a block, bytes: CUDA C programming guide, table of technical specifications per capability.
SHARED_MEMORY_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}


@dataclass(frozen=True)
class Compiled:
    """PTX text, dynamic shared memory in bytes, and the capability (90 for sm_90)."""

    ptx: str
    shared_bytes: int
    capability: int


def compile_kernel(
    kernel: triton.JITFunction,
    *,
    signature: Mapping[str, str],
    constexprs: Mapping[str, object],
    capability: int,
    multiples_of_16: Collection[str] = (),
    num_warps: int = 4,
    num_stages: int = 3,
    max_registers: int = 0,
) -> Compiled:
    """Compile with triton's own ptxas.

    ``signature``: the type of every runtime argument, such as ``*bf16`` or ``i32``. Pointers, and the integers in
    ``multiples_of_16``, are taken as aligned, the way a launch would find them.
    Raises ValueError, with the compiler's reason, where the capability cannot run the kernel.
    """
    if "dependent" in kernel.arg_names:
        constexprs = {**constexprs, "dependent": capability >= _number(DEPENDENT_CAPABILITY)}
    kinds = {name: "constexpr" if name in constexprs else signature[name] for name in kernel.arg_names}
    aligned = [i for i, n in enumerate(kernel.arg_names) if kinds[n].startswith("*") or n in multiples_of_16]
    source = ASTSource(kernel, kinds, dict(constexprs), {(i,): [["tt.divisibility", 16]] for i in aligned})
    try:
        built = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": num_warps, "num_stages": num_stages, "maxnreg": max_registers or None},
        )
    except Exception as error:
        raise ValueError(f"{kernel.__name__} does not compile for sm_{capability}: {error}") from error
    if built.metadata.shared > SHARED_MEMORY_BYTES.get(capability, 227 * 1024):
        raise ValueError(f"{kernel.__name__} needs {built.metadata.shared} bytes of shared memory on sm_{capability}")
    return Compiled(ptx=built.asm["ptx"], shared_bytes=built.metadata.shared, capability=capability)


def compile_grouped_gemm(
    weights_format: str, *, capability: int, k_size: int, tile: Tile | None = None, has_bias: bool = False
) -> Compiled:
    """The grouped GEMM of ``bf16`` or ``e4m3_block`` as ``triton_grouped_gemm`` launches it for N a multiple of 16."""
    scaled = weights_format == "e4m3_block"
    tile = tile or choose_tile(weights_format, num_rows=4096, num_experts=8)
    element, scale = ("*fp8e4nv", "*fp32") if scaled else ("*bf16", None)
    types = {"a_ptr": element, "w_ptr": element, "a_scale_ptr": scale, "w_scale_ptr": scale}
    types |= {"bias_ptr": "*bf16" if has_bias else None, "out_ptr": "*bf16", "offsets_ptr": "*i64"}
    types |= {"block_expert_ptr": "*i32", "block_start_ptr": "*i64"}
    constexprs: dict[str, object] = {name: None for name, kind in types.items() if kind is None}
    constexprs |= {"k_size": k_size, "scaled": scaled, "has_bias": has_bias, "widen": False}
    constexprs |= {"block_m": tile.block_m, "block_n": tile.block_n, "block_k": tile.block_k, "group_m": tile.group_m}
    signature = {name: kind for name, kind in types.items() if kind is not None}
    strides = ("stride_am", "stride_we", "stride_wn", "stride_om", "n_size")
    signature |= {name: "i32" for name in grouped_gemm_kernel.arg_names if name not in signature | constexprs}
    return compile_kernel(
        grouped_gemm_kernel,
        signature=signature,
        constexprs=constexprs,
        capability=capability,
        multiples_of_16=strides if k_size % 16 == 0 else ("stride_om", "n_size"),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def compile_expert_gemm(
    weights_format: str,
    *,
    capability: int,
    tile: Tile,
    gated: bool,
    n_size: int,
    k_size: int,
    direct: bool = False,
    gpt_oss: bool = False,
    activations_format: str | None = None,
) -> Compiled:
    """A GEMM of the fused layer as ``expert_gemm`` launches it; ``gpt_oss``: interleaved, clamped, with biases.

    ``activations_format``: where given, and the capability scales blocks itself, the kernel that lets it.
    """
    pair = (weights_format, activations_format)
    scaled = pair in SCALED_PAIRS and capability // 10 == SCALED_MAJOR
    kernel = scaled_expert_kernel if scaled else kernel_of(weights_format, tile)
    types = operand_types(kernel, weights_format, tile, gated=gated, interleaved=gated and gpt_oss)
    types |= routing_types(gated=gated, has_bias=gpt_oss, direct=direct)
    constexprs: dict[str, object] = {name: None for name, kind in types.items() if kind is None}
    constexprs |= shape_constants(weights_format, tile, gated=gated, n_size=n_size, gpt_oss=gpt_oss)
    constexprs |= {"k_size": k_size, "direct": direct, "has_order": not direct}
    constexprs |= {"a_element": ELEMENTS.get(activations_format or ""), "w_element": ELEMENTS.get(weights_format)}
    known = set(kernel.arg_names)
    constexprs = {name: value for name, value in constexprs.items() if name in known}
    signature = {name: kind for name, kind in types.items() if kind is not None and name in known}
    signature |= {name: "i32" for name in kernel.arg_names if name not in signature | constexprs}
    strides = tuple(name for name in kernel.arg_names if name.startswith("stride"))
    return compile_kernel(
        kernel,
        signature=signature,
        constexprs=constexprs,
        capability=capability,
        multiples_of_16=strides,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
    )


def compile_block_table(*, capability: int, num_experts: int, block_m: int = 64) -> Compiled:
    """The kernel that builds the block-to-expert table."""
    groups = triton.next_power_of_2(num_experts + 1)
    return compile_kernel(
        block_table_kernel,
        signature={
            "offsets_ptr": "*i64",
            "experts_ptr": "*i32",
            "starts_ptr": "*i64",
            "num_rows": "i32",
            "num_entries": "i32",
        },
        constexprs={"num_experts": num_experts, "block_m": block_m, "padded_groups": groups, "entries": 64},
        capability=capability,
    )


def compile_row_kernels(*, capability: int) -> dict[str, Compiled]:
    """The kernels around the GEMM by stage; ``quantise`` only where E4M3 exists (8.9 and up)."""
    integers = ("num_rows", "num_columns", "stride_x", "width", "hidden")
    jobs: dict[str, tuple[triton.JITFunction, dict[str, str], dict[str, object]]] = {
        "activation": (
            activation_kernel,
            {"h_ptr": "*bf16", "out_ptr": "*bf16", "alpha": "fp32", "limit": "fp32"},
            {"clamped": True, "interleaved": True, "block_rows": 4, "block_columns": 256},
        ),
        "combine": (
            combine_kernel,
            {"rows_ptr": "*bf16", "row_of_pair_ptr": "*i64", "weights_ptr": "*fp32", "out_ptr": "*fp32"},
            {"top_k": 8, "block_columns": 1024},
        ),
    }
    if capability >= 89:
        pointers = {"x_ptr": "*bf16", "code_ptr": "*u8", "scale_ptr": "*fp32"}
        jobs["quantise"] = (quantise_block_kernel, pointers, {"block_rows": 16, "by_hand": False})
    return {
        stage: compile_kernel(
            kernel,
            signature=pointers | {name: "i32" for name in integers if name in kernel.arg_names},
            constexprs=constexprs,
            capability=capability,
        )
        for stage, (kernel, pointers, constexprs) in jobs.items()
    }


def multiply_instructions(ptx: str) -> frozenset[str]:
    """Matrix instructions in the PTX, without their operands: ``wgmma...e4m3.e4m3``, ``mma.sync...bf16...``."""
    starts = ("wgmma.mma_async", "mma.sync", "tcgen05.mma")
    words = (word for line in ptx.splitlines() for word in line.split())
    return frozenset(word for word in words if word.startswith(starts))


@cache
def compiled_math_path(weights_format: str, activations_format: str, capability: tuple[int, int]) -> str:
    """``native``, ``upcast`` or ``emulated``, read from the matrix instructions of the fused GEMM as it compiles.

    Native: both sides are multiplied as they are stored; upcast: a side is widened, exactly. Emulated: widened, and the
    activations are FP4, for which the GPU has no arithmetic at all.
    """
    itself = scales_itself(weights_format, activations_format, capability)
    tile = LAYER_TILES["scaled" if itself else family(weights_format)][0][1].gemm2
    built = compile_expert_gemm(
        weights_format,
        capability=_number(capability),
        tile=tile,
        gated=False,
        n_size=512,
        k_size=512,
        activations_format=activations_format if itself else None,
    )
    names = multiply_instructions(built.ptx)
    wide = not any("e4m3" in name or "f8f6f4" in name or "mxf4" in name for name in names)
    multiplied = {"bf16"} if wide else {"e4m3", "e2m1"} if itself else {"e4m3"}
    elements = {_element(weights_format), _element(activations_format)}
    if elements <= multiplied:
        return "native"
    return "emulated" if _element(activations_format) == "e2m1" else "upcast"


def _number(capability: tuple[int, int]) -> int:
    return capability[0] * 10 + capability[1]


def _element(format_name: str) -> str:
    """``e4m3`` of ``e4m3_block`` and of ``mxfp8``, ``e2m1`` of the FP4 formats."""
    return {"mxfp8": "e4m3", "mxfp4": "e2m1", "nvfp4": "e2m1"}.get(format_name, format_name.split("_")[0])
