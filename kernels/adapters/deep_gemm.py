"""DeepGEMM's grouped FP8 product with 128x128 weight scales, the layout "contiguous": each group padded to 128 rows.

Seen with 2.5.0: groups start at multiples of 128 rows, ``m_indices`` int32 names the expert of every row and -1 a row
to pass over, scales are float32 and ``disable_ue8m0_cast`` keeps them so. Kernels are compiled by nvcc or nvrtc when a
shape first comes up, which the first call of a cell pays. Tokens are quantised once, before they are copied to their
experts. Sorting, quantising, activation and combine are ours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.activation import apply_activation
from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.adapters.layout import fp8_codes
from kernels.formats import Quantised
from kernels.grouped_gemm import quantise_rows
from kernels.moe import ExpertWeights
from kernels.permute import block_experts, combine_at, sort_by_expert

GROUP = 128


@dataclass(frozen=True)
class Padded:
    """Rows in groups of whole blocks, P of them. ``token_P``: whose row it is; ``expert_P`` int32, -1 for padding.

    ``place_TK``: the row of each pair, -1 for a dropped one.
    """

    token_P: Tensor
    expert_P: Tensor
    place_TK: Tensor


def limits(request: LayerRequest) -> str | None:
    """Whole blocks of 128, no bias in the product."""
    if request.hidden % GROUP or request.intermediate % GROUP:
        return f"multiplies whole blocks of {GROUP}: hidden {request.hidden}, intermediate {request.intermediate}"
    if request.has_bias:
        return "adds no bias"
    return None if request.weight_on == "output" else "weights the output of an expert, not its input"


def pad_groups(ids_TK: Tensor, num_experts: int) -> Padded:
    """The padded order of routed pairs; its length depends on the shapes alone, so nothing waits for the device.

    Ids [0, 1, 1] and groups of 2 rows would give the experts [0, -1, 1, 1].
    """
    num_pairs, top_k = ids_TK.numel(), ids_TK.shape[1]
    perm = sort_by_expert(ids_TK, num_experts, keep_dropped=True)
    table = block_experts(perm.offsets.diff(), GROUP, num_rows=num_pairs)
    lane = torch.arange(GROUP, device=ids_TK.device)
    row_P = (table.starts[:, None] + lane).flatten()
    expert_P = table.experts.repeat_interleave(GROUP)
    end_P = perm.offsets[1:].index_select(0, expert_P.clamp(min=0).long())
    is_row_P = (expert_P >= 0) & (row_P < end_P)
    pair_P = perm.order.index_select(0, row_P.clamp(max=max(num_pairs - 1, 0)))
    # Padding rows write to a spare entry past the end, which is cut off.
    place = torch.full((num_pairs + 1,), -1, dtype=torch.int64, device=ids_TK.device)
    place.scatter_(0, torch.where(is_row_P, pair_P, num_pairs), torch.arange(len(row_P), device=ids_TK.device))
    return Padded(
        token_P=pair_P.div(top_k, rounding_mode="floor"),
        expert_P=expert_P.masked_fill(~is_row_P, -1),
        place_TK=place[:-1].view(ids_TK.shape),
    )


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on ``m_grouped_fp8_gemm_nt_contiguous``; no copy of the weights."""
    product = load("deep_gemm").m_grouped_fp8_gemm_nt_contiguous

    def multiply(codes_PK: Tensor, scale: Tensor, padded: Padded, weights: Quantised) -> Tensor:
        out_PN = torch.empty(len(codes_PK), weights.shape[1], dtype=torch.bfloat16, device=codes_PK.device)
        right = (fp8_codes(weights), weights.scale)
        product((codes_PK, scale), right, out_PN, padded.expert_P, disable_ue8m0_cast=True)
        return out_PN

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        padded = pad_groups(ids_TK, request.num_experts)
        if not padded.token_P.numel():
            return torch.zeros_like(x_TH)
        tokens = quantise_rows(x_TH, "e4m3_block", weights=experts.w13)
        codes = tokens.data.index_select(0, padded.token_P).view(torch.float8_e4m3fn)
        rows = multiply(codes, tokens.scale.index_select(0, padded.token_P), padded, experts.w13)
        middle = quantise_rows(apply_activation(rows, experts.activation), "e4m3_block", weights=experts.w2)
        rows = multiply(fp8_codes(middle), middle.scale, padded, experts.w2)
        return combine_at(rows, padded.place_TK, weights_TK)

    return layer


ADAPTER = Adapter(
    name="deep_gemm",
    package="deep_gemm",
    distribution="deep_gemm",
    install="pip install vllm==0.20.2 (which ships a copy), or build https://github.com/deepseek-ai/DeepGEMM; nvcc too",
    formats=frozenset({("e4m3_block", "e4m3_block")}),
    capability=(9, 0),
    limits=limits,
    prepare=prepare,
)
