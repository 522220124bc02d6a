"""The expert layer in few launches: plan, quantise, gemm1 with gather and gate, gemm2 with the routing weight, combine.

T tokens, K top-k, P = T * K pairs, E experts, H hidden, I intermediate. Stages are functions of their own, so that a
harness can time them apart: ``plan_fused``, ``quantise_tokens``, ``fused_gemm1``, ``quantise_middle``, ``fused_gemm2``,
``combine_fused``. All of them need a GPU, or triton's interpreter, and none waits for the device.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.backend import capability_of, scales_itself
from kernels.formats import Quantised
from kernels.grouped_gemm import quantise_rows
from kernels.grouped_gemm.expert_gemm import decoded_rows, expert_gemm
from kernels.grouped_gemm.packed import PackedWeights
from kernels.grouped_gemm.tiles import LayerTiles, choose_layer_tiles
from kernels.triton_permute import RowPlan, combine_pairs, plan_pairs, plan_sorted
from kernels.triton_rows_mx import decode_mx_rows, round_mx_rows

if TYPE_CHECKING:
    from kernels.moe import ExpertWeights


@dataclass(frozen=True)
class FusedPlan:
    """The row plan of a call with the tiles that it was made for."""

    rows: RowPlan
    tiles: LayerTiles
    num_rows: int
    top_k: int


def plan_fused(ids_TK: Tensor, experts: "ExpertWeights", *, tiles: LayerTiles | None = None) -> FusedPlan:
    """Expert order of routed tokens; ids of -1 belong to no expert here."""
    num_pairs = ids_TK.numel()
    tiles = tiles or _tiles(experts, num_pairs)
    return FusedPlan(plan_pairs(ids_TK, experts.num_experts, block_m=tiles.block_m), tiles, num_pairs, ids_TK.shape[1])


def plan_fused_sorted(offsets: Tensor, experts: "ExpertWeights", *, num_rows: int) -> FusedPlan:
    """The plan of rows that lie in expert order: ``expert_mlp``."""
    tiles = _tiles(experts, num_rows)
    return FusedPlan(plan_sorted(offsets, num_rows=num_rows, block_m=tiles.block_m), tiles, num_rows, 1)


def _tiles(experts: "ExpertWeights", num_rows: int) -> LayerTiles:
    name = "scaled" if _scales_itself(experts) else experts.w13.format
    return choose_layer_tiles(name, num_rows=num_rows, num_experts=experts.num_experts, device=experts.w13.data.device)


def _scales_itself(experts: "ExpertWeights") -> bool:
    """Experts that came through a cache of packed slots have no plain codes to give to the matrix unit."""
    codes = experts.w13.data
    return codes.numel() > 0 and scales_itself(
        experts.w13.format, experts.recipe.activations, capability_of(codes.device)
    )


def _multiplied(experts: "ExpertWeights") -> tuple[Quantised | PackedWeights, Quantised | PackedWeights]:
    """The weights of gemm1 and gemm2 in the form that their kernel reads."""
    if experts.packed13 is None or experts.packed2 is None or not experts.is_packed or _scales_itself(experts):
        return experts.w13, experts.w2
    return experts.packed13, experts.packed2


def quantise_tokens(x_TH: Tensor | Quantised, experts: "ExpertWeights") -> Tensor | Quantised:
    """Tokens as gemm1 multiplies them."""
    return _quantised(x_TH, experts, experts.w13)


def quantise_middle(h_PI: Tensor | Quantised, experts: "ExpertWeights") -> Tensor | Quantised:
    """Activated rows as gemm2 multiplies them."""
    return _quantised(h_PI, experts, experts.w2)


def _quantised(rows: Tensor | Quantised, experts: "ExpertWeights", weights: Quantised) -> Tensor | Quantised:
    inputs = experts.recipe.activations
    if inputs not in ("mxfp8", "mxfp4") or _scales_itself(experts):
        return rows if isinstance(rows, Quantised) else quantise_rows(rows, inputs, weights=weights)
    # MX weights are multiplied in BF16, which holds the values of MX rows exactly: no codes are stored in between.
    paired = weights.format == "mxfp8"
    if isinstance(rows, Quantised):
        return decode_mx_rows(rows, paired=paired) if rows.format == "mxfp8" else decoded_rows(rows)
    return round_mx_rows(rows, name=inputs, scale_rule=weights.scale_rule, overflow=weights.overflow, paired=paired)


def fused_gemm1(
    x: Tensor | Quantised, plan: FusedPlan, experts: "ExpertWeights", *, weights_TK: Tensor | None = None
) -> Tensor | Quantised:
    """Activated rows [P, I] in expert order, encoded already where the kernel does it; ``weights_TK`` multiply the
    tokens (weights on the input)."""
    return expert_gemm(
        x,
        _multiplied(experts)[0],
        plan.rows,
        plan.tiles.gemm1,
        num_rows=plan.num_rows,
        top_k=plan.top_k,
        activation=experts.activation,
        bias_EN=experts.bias13,
        weights_P=_flat(weights_TK),
    )


def fused_gemm2(
    h: Tensor | Quantised, plan: FusedPlan, experts: "ExpertWeights", *, weights_TK: Tensor | None = None
) -> Tensor:
    """Rows [P, H] in the order of pairs, times ``weights_TK``; rows of dropped pairs are left unwritten."""
    return expert_gemm(
        h,
        _multiplied(experts)[1],
        plan.rows,
        plan.tiles.gemm2,
        num_rows=plan.num_rows,
        bias_EN=experts.bias2,
        weights_P=_flat(weights_TK),
    )


def combine_fused(
    rows_PH: Tensor, ids_TK: Tensor, *, out_dtype: torch.dtype = torch.bfloat16, shared_TH: Tensor | None = None
) -> Tensor:
    """Sums [T, H] of the weighted rows, plus ``shared_TH``."""
    return combine_pairs(rows_PH, ids_TK, out_dtype=out_dtype, shared_TH=shared_TH)


def fused_layer(
    x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: "ExpertWeights", *, weight_on: str = "output",
    shared_TH: Tensor | None = None, tiles: LayerTiles | None = None,
) -> Tensor:  # fmt: skip
    """[T, H] in the dtype of ``x_TH``; see ``kernels.moe.moe_layer``."""
    if not x_TH.shape[0]:
        return torch.zeros_like(x_TH)
    on_input, on_output = (weights_TK, None) if weight_on == "input" else (None, weights_TK)
    plan = plan_fused(ids_TK, experts, tiles=tiles)
    h_PI = fused_gemm1(quantise_tokens(x_TH, experts), plan, experts, weights_TK=on_input)
    rows_PH = fused_gemm2(quantise_middle(h_PI, experts), plan, experts, weights_TK=on_output)
    return combine_fused(rows_PH, ids_TK, out_dtype=x_TH.dtype, shared_TH=shared_TH)


def fused_mlp(rows_MH: Tensor | Quantised, offsets: Tensor, experts: "ExpertWeights") -> Tensor:
    """BF16 [M, H] of rows in expert order, zeros past the last offset; see ``kernels.moe.expert_mlp``."""
    plan = plan_fused_sorted(offsets, experts, num_rows=rows_MH.shape[0])
    h_MI = fused_gemm1(quantise_tokens(rows_MH, experts), plan, experts)
    return fused_gemm2(quantise_middle(h_MI, experts), plan, experts)


def _flat(weights_TK: Tensor | None) -> Tensor | None:
    return None if weights_TK is None else weights_TK.reshape(-1).float().contiguous()
