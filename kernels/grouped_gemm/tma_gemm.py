"""Launch of the GEMM through tensor descriptors, and when one can be had.

E experts, N columns, K reduced; P pairs.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.grouped_gemm.tiles import Tile
from kernels.grouped_gemm.tma_kernel import tma_expert_kernel
from kernels.triton_permute import RowPlan
from kernels.triton_rows import interpreted

_ALIGNMENT = 16
_TMA_CAPABILITY = (9, 0)


def takes_descriptors(tile: Tile, weights_ENK: Tensor, rows: Tensor, plan: RowPlan, *, tile_scale: bool) -> bool:
    """Whether the tile asks for descriptors and the operands allow them: rows of 16 bytes each, Hopper or later.

    ``tile_scale``: a block scale holds for all columns of a tile, or the weights have none.
    """
    if not tile.tma or tile.swap or plan.direct or not tile_scale:
        return False
    operands = (weights_ENK, rows)
    aligned = all(
        t.stride(-2) * t.element_size() % _ALIGNMENT == 0 and t.data_ptr() % _ALIGNMENT == 0 for t in operands
    )
    on_gpu = weights_ENK.device.type == "cuda"
    return aligned and (not on_gpu or torch.cuda.get_device_capability(weights_ENK.device) >= _TMA_CAPABILITY)


def launch_tma(
    rows: Tensor, row_scale: Tensor | None, weights_ENK: Tensor, weight_scale: Tensor | None, bias_EN: Tensor | None,
    out: Tensor, weights_P: Tensor | None, plan: RowPlan, *, limits: tuple[float, float], tile: Tile,
    scale_strides: tuple[int, int, int], scaling: str, common: dict[str, Any],
) -> None:  # fmt: skip
    """``tma_expert_kernel`` into ``out``; ``scale_strides`` are those of the rows' scale and of the weights' two."""
    sizes = {name: value for name, value in common.items() if name != "direct"}
    gated, alternating = common["gated"], common["gate_step"] == 2
    num_experts, parts = weights_ENK.shape[0], 2 if gated else 1
    if alternating:
        view, block = weights_ENK, [1, parts * tile.block_n, tile.block_k]
    else:
        view = weights_ENK.view(num_experts * parts, common["n_size"], common["k_size"])
        block = [parts, tile.block_n, tile.block_k]
    in_place = not gated or (plan.order is None and common["top_k"] == 1)
    a = TensorDescriptor.from_tensor(rows, [tile.block_m, tile.block_k]) if in_place else rows
    grid = (plan.num_blocks * triton.cdiv(common["n_size"], tile.block_n),)
    tma_expert_kernel[grid](
        a, row_scale, TensorDescriptor.from_tensor(view, block), weight_scale, bias_EN, out,
        plan.order, weights_P, plan.offsets, plan.experts, plan.starts, plan.num_blocks, num_experts, *limits,
        rows.stride(0), *scale_strides, out.stride(0),
        scaling=scaling, a_is_desc=in_place, block_k=tile.block_k, **sizes | {"widen": interpreted()},
    )  # fmt: skip
