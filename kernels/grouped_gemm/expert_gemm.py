"""Launches of the fused expert GEMMs: which kernel a format takes, with which strides and scales.

P pairs, E experts, H hidden, I intermediate, N output columns, K reduced.
"""

import torch
import triton
from torch import Tensor

from kernels.activation import Activation
from kernels.dependent import launch_options
from kernels.formats import FORMATS, Quantised
from kernels.grouped_gemm.expert_kernels import dense_expert_kernel
from kernels.grouped_gemm.mx_kernel import mx_expert_kernel
from kernels.grouped_gemm.packed import PackedWeights
from kernels.grouped_gemm.packed_kernel import packed_expert_kernel
from kernels.grouped_gemm.scaled_kernel import scaled_expert_kernel
from kernels.grouped_gemm.tiles import Tile
from kernels.grouped_gemm.tma_gemm import launch_tma, takes_descriptors
from kernels.triton_permute import RowPlan
from kernels.triton_rows import SCALE_GROUP, interpreted, storable

ELEMENTS = {"mxfp8": "e4m3", "mxfp4": "e2m1", "nvfp4": "e2m1"}
SCALING = {"bf16": "none", "e4m3_block": "block", "e4m3_row": "outer", "e4m3_tensor": "outer"}


def expert_gemm(
    a: Tensor | Quantised,
    weights: Quantised | PackedWeights,
    plan: RowPlan,
    tile: Tile,
    *,
    num_rows: int,
    top_k: int = 1,
    activation: Activation | None = None,
    bias_EN: Tensor | None = None,
    weights_P: Tensor | None = None,
) -> Tensor | Quantised:
    """BF16 [P, N], N = I where ``activation`` is given (gemm1), else every column of the weights (gemm2).

    Rows of dropped pairs are left unwritten. ``a``: tokens for gemm1, rows in expert order for gemm2. What gemm1 makes
    comes back encoded for gemm2 where a tile holds whole groups of it.
    """
    gated = activation is not None
    columns = weights.shape[1] * (weights.shape[2] if isinstance(weights, PackedWeights) else 1)
    n_size = columns if not gated else weights.shape[2] if isinstance(weights, PackedWeights) else columns // 2
    a = a if isinstance(a, Quantised) or a.stride(1) == 1 else a.contiguous()
    device = (a.data if isinstance(a, Quantised) else a).device
    if gated and _stores_codes(weights, tile, n_size):
        out: Tensor | Quantised = _empty_codes(num_rows, n_size, device)
    else:
        out = _empty_rows(num_rows, n_size, weights, plan, gated=gated, device=device)
    activation = activation or Activation()
    interleaved = gated and activation.interleaved
    common = {
        "n_size": n_size,
        "k_size": weights.shape[-1],
        "top_k": top_k,
        "gated": gated,
        "clamped": activation.kind == "clamped_swiglu",
        "gate_step": 2 if interleaved else 1,
        "up_offset": (1 if interleaved else n_size) if gated else 0,
        "has_bias": bias_EN is not None,
        "has_weights": weights_P is not None,
    }
    common |= _constants(plan, tile) | launch_options(device)
    limits = (float(activation.alpha), float(activation.limit))
    launches = _LAUNCHES if isinstance(weights, Quantised) else _PACKED_LAUNCHES
    launch = launches.get(weights.format, _launch_dense)
    if num_rows * n_size:
        with torch.cuda.device_of(a.data if isinstance(a, Quantised) else a):
            launch(a, weights, bias_EN, out, weights_P, plan, limits, tile, common)
    return out if isinstance(out, Quantised) else out.to(torch.bfloat16)


def _constants(plan: RowPlan, tile: Tile) -> dict[str, object]:
    """What a launch takes from the plan and the tile."""
    named = {"direct": plan.direct, "has_order": plan.order is not None, "widen": interpreted()}
    named |= {"block_m": tile.block_m, "block_n": tile.block_n, "group_m": tile.group_m}
    named |= {"num_stages": tile.num_stages, "num_warps": tile.num_warps}
    return named | ({"maxnreg": tile.max_registers} if tile.max_registers else {})


def _stores_codes(weights: Quantised | PackedWeights, tile: Tile, n_size: int) -> bool:
    """Whether a tile of activated columns is a group that E4M3 rows scale together, by the rule of the fused rows."""
    plain = isinstance(weights, Quantised) and (weights.scale_rule, weights.overflow) == ("none", "saturate")
    whole = tile.block_n == SCALE_GROUP and n_size % SCALE_GROUP == 0 and not tile.tma
    return plain and whole and weights.format == "e4m3_block"


def _empty_codes(num_rows: int, n_size: int, device: torch.device) -> Quantised:
    codes = torch.empty(num_rows, n_size, dtype=torch.uint8, device=device)
    scale = torch.empty(num_rows, n_size // SCALE_GROUP, dtype=torch.float32, device=device)
    return Quantised("e4m3_block", (num_rows, n_size), codes, scale, None, "none", "saturate")


def _empty_rows(
    num_rows: int, n_size: int, weights: Quantised | PackedWeights, plan: RowPlan, *, gated: bool, device: torch.device
) -> Tensor:
    """Zeros where rows of no expert are given back, or where a scale of the whole matrix is taken over them."""
    whole = isinstance(weights, Quantised) and weights.format in ("e4m3_tensor", "e5m2_tensor", "nvfp4")
    make = torch.zeros if (gated and whole) or not (gated or plan.direct or plan.order is not None) else torch.empty
    return make(num_rows, n_size, dtype=storable(torch.bfloat16), device=device)


def _launch_packed(a, weights, bias_EN, out, weights_P, plan, limits, tile, common) -> None:
    grid = (plan.num_blocks * triton.cdiv(common["n_size"], tile.block_n),)
    packed_expert_kernel[grid](
        a, weights.words, weights.scales, weights.column_scale, bias_EN, out,
        plan.order, weights_P, plan.offsets, plan.experts, plan.starts,
        plan.num_blocks, weights.shape[0], *limits, a.stride(0), out.stride(0),
        nvfp4=weights.format == "nvfp4", **common,
    )  # fmt: skip


def _launch_mx8(a, weights, bias_EN, out, weights_P, plan, limits, tile, common) -> None:
    grid = (plan.num_blocks * triton.cdiv(common["n_size"], tile.block_n),)
    mx_expert_kernel[grid](
        a, weights.words.view(torch.int16), weights.scales, weights.column_scale, bias_EN, out,
        plan.order, weights_P, plan.offsets, plan.experts, plan.starts,
        plan.num_blocks, weights.shape[0], *limits, a.stride(0), weights.words.stride(1) // 2, out.stride(0), **common,
    )  # fmt: skip


def _launch_scaled(a, weights, bias_EN, out, weights_P, plan, limits, tile, common) -> None:
    grid = (plan.num_blocks * triton.cdiv(common["n_size"], tile.block_n),)
    nvfp4 = weights.format == "nvfp4"
    scale_type = torch.float8_e4m3fn if nvfp4 and not interpreted() else torch.uint8
    a_scale, w_scale = (q.scale.contiguous().view(scale_type) for q in (a, weights))
    scaled_expert_kernel[grid](
        a.data, a_scale, a.global_scale, weights.data, w_scale, weights.global_scale, bias_EN, out,
        plan.order, weights_P, plan.offsets, plan.experts, plan.starts,
        plan.num_blocks, weights.shape[0], *limits, a.data.stride(0), a_scale.stride(0), out.stride(0),
        a_element=ELEMENTS[a.format], w_element=ELEMENTS[weights.format], group=16 if nvfp4 else 32,
        swap=tile.swap, block_k=tile.block_k, **common,
    )  # fmt: skip


_LAUNCHES = dict.fromkeys(("mxfp8", "mxfp4", "nvfp4"), _launch_scaled)
_PACKED_LAUNCHES = {"mxfp4": _launch_packed, "nvfp4": _launch_packed, "mxfp8": _launch_mx8}


def _launch_dense(a, weights, bias_EN, out, weights_P, plan, limits, tile, common) -> None:
    a_data, w = (q.data.view(torch.float8_e4m3fn) if isinstance(q, Quantised) and q.format != "bf16" else
                 q.data if isinstance(q, Quantised) else q for q in (a, weights))  # fmt: skip
    a_scale = a.scale.contiguous() if isinstance(a, Quantised) and a.scale is not None else None
    out, out_scale = (out.data, out.scale) if isinstance(out, Quantised) else (out, None)
    scaling = SCALING[weights.format]
    # A scale of the whole matrix is read by every row and column: strides of zero.
    stride_as = a_scale.stride(0) if a_scale is not None and a_scale.dim() else 0
    per_column = weights.scale is not None and weights.scale.dim() > 1
    scale_strides = (weights.scale.stride(0), 1 if per_column else 0) if weights.scale is not None else (0, 0)
    # Columns of a tile share a scale if the tile lies within 128 of them.
    tile_scale = common["gate_step"] == 1 and common["up_offset"] % 128 == 0 and 128 % tile.block_n == 0
    if takes_descriptors(tile, w, a_data, plan, tile_scale=tile_scale or scaling != "block"):
        launch_tma(
            a_data, a_scale, w, weights.scale, bias_EN, out, weights_P, plan, limits=limits, tile=tile,
            scale_strides=(stride_as, *scale_strides), scaling=scaling, common=common,
        )  # fmt: skip
        return
    grid = (plan.num_blocks * triton.cdiv(common["n_size"], tile.block_n),)
    dense_expert_kernel[grid](
        a_data, a_scale, w, weights.scale, bias_EN, out, out_scale,
        plan.order, weights_P, plan.offsets, plan.experts, plan.starts,
        plan.num_blocks, weights.shape[0], *limits,
        a_data.stride(0), stride_as, w.stride(0), w.stride(1), *scale_strides, out.stride(0),
        scaling=scaling, tile_scale=tile_scale, swap=tile.swap, block_k=tile.block_k, **common,
    )  # fmt: skip


def decoded_rows(rows: Tensor | Quantised) -> Tensor:
    """BF16 rows; MX values are exact in BF16, so decoding them loses nothing."""
    return FORMATS[rows.format].decode(rows, torch.bfloat16) if isinstance(rows, Quantised) else rows
