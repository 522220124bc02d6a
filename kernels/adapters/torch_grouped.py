"""torch's own grouped products: ``torch._grouped_mm`` (BF16) and ``torch._scaled_grouped_mm`` (row-wise FP8, sm_90).

Sorting, gathering, quantising, activation and combine are ours, so this is what torch's products give a layer. Weights
are taken as they are, [E, N, K] seen transposed. Both products leave rows past the last offset unwritten.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.activation import apply_activation
from kernels.adapters.base import Adapter, Layer, LayerRequest
from kernels.adapters.layout import fp8_codes
from kernels.formats import Quantised
from kernels.grouped_gemm import quantise_rows
from kernels.moe import ExpertWeights
from kernels.permute import Permutation, combine_rows, gather_rows, sort_by_expert

ALIGNED_BYTES = 16
FP8_ROW = ("e4m3_row", "e4m3_row")


def limits(request: LayerRequest) -> str | None:
    """Strides of 16 bytes, and weights on the output."""
    size = 1 if request.recipe.weights == "e4m3_row" else 2
    wrong = [n for n in (request.hidden, request.intermediate) if n * size % ALIGNED_BYTES]
    if wrong:
        return f"wants rows of whole {ALIGNED_BYTES} bytes, and {wrong[0]} {request.recipe.weights} values are not"
    return None if request.weight_on == "output" else "weights the output of an expert, not its input"


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on torch's grouped products; no copy of the weights."""
    multiply = _scaled_product if request.recipe.weights == "e4m3_row" else _product
    bias13, bias2 = (None if b is None else b.to(torch.bfloat16) for b in (experts.bias13, experts.bias2))

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        perm = sort_by_expert(ids_TK, request.num_experts, keep_dropped=True)
        rows = gather_rows(x_TH, perm, ids_TK.shape[1])
        finish = _finisher(perm, biased=request.has_bias, cleared=request.has_dropped)
        rows = finish(multiply(rows, perm, experts.w13), bias13)
        rows = apply_activation(rows, experts.activation)
        rows = finish(multiply(rows, perm, experts.w2), bias2)
        return combine_rows(rows, perm, weights_TK)

    return layer


def _product(rows_MK: Tensor, perm: Permutation, weights: Quantised) -> Tensor:
    return torch._grouped_mm(rows_MK, weights.data.transpose(1, 2), offs=perm.offsets[1:].to(torch.int32))


def _scaled_product(rows_MK: Tensor, perm: Permutation, weights: Quantised) -> Tensor:
    rows = quantise_rows(rows_MK, "e4m3_row", weights=weights)
    return torch._scaled_grouped_mm(
        fp8_codes(rows),
        fp8_codes(weights).transpose(1, 2),
        rows.scale,
        weights.scale,
        offs=perm.offsets[1:].to(torch.int32),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def _finisher(perm: Permutation, *, biased: bool, cleared: bool) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Adds each row's bias, and clears the rows that belong to no expert, after a product."""
    row_M = torch.arange(perm.num_rows, device=perm.order.device)
    expert_M = torch.searchsorted(perm.offsets, row_M, right=True) - 1 if biased else None

    def finish(out_MN: Tensor, bias_EN: Tensor | None) -> Tensor:
        if bias_EN is not None and expert_M is not None:
            out_MN += bias_EN.index_select(0, expert_M.clamp(max=len(bias_EN) - 1))
        return out_MN.masked_fill_(row_M[:, None] >= perm.offsets[-1], 0) if cleared else out_MN

    return finish


ADAPTER = Adapter(
    name="torch",
    package="torch",
    distribution="torch",
    install="pip install 'torch>=2.11'",
    formats=frozenset({("bf16", "bf16"), FP8_ROW}),
    capability=(9, 0),
    limits=limits,
    prepare=prepare,
)
