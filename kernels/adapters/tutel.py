"""Tutel's dense dispatch: ``fast_encode`` into [E, C, H], one batched product over all experts, ``fast_decode`` back.

C is the largest load, read on the host, so nothing is dropped and every expert is multiplied to that length. Tutel's
encoder works in float32 for BF16. The batched products are torch's, as in Tutel's own experts; activation is ours.
"""

import torch
from torch import Tensor

from kernels.activation import apply_activation
from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.moe import ExpertWeights
from kernels.permute import sort_by_expert


def limits(request: LayerRequest) -> str | None:
    """Every pair has an expert."""
    return "has no place for dropped pairs or experts of other ranks" if request.has_dropped else None


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on Tutel's encoder and decoder; no copy of the weights."""
    dispatch = load("tutel.impls.fast_dispatch")
    bias13, bias2 = (None if b is None else b.to(torch.bfloat16)[:, None] for b in (experts.bias13, experts.bias2))
    postscore = request.weight_on == "output"

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        if not len(x_TH):
            return torch.zeros_like(x_TH)
        plan = critical_data(ids_TK, weights_TK, request.num_experts)
        rows = _batched(dispatch.fast_encode(x_TH, plan, is_postscore=postscore), experts.w13.data, bias13)
        middle = apply_activation(rows.flatten(0, 1), experts.activation).unflatten(0, rows.shape[:2])
        return dispatch.fast_decode(_batched(middle, experts.w2.data, bias2), plan, is_postscore=postscore)

    return layer


def critical_data(ids_TK: Tensor, weights_TK: Tensor, num_experts: int) -> tuple:
    """What Tutel's encoder reads: E, then by choice k experts, places in their expert and weights [T], and C.

    Ids [[0], [1], [0]] have the places 0, 0 and 1 and C is 2.
    """
    perm = sort_by_expert(ids_TK, num_experts)
    row_of_pair = torch.empty_like(perm.order)
    row_of_pair.scatter_(0, perm.order, torch.arange(perm.num_rows, device=ids_TK.device))
    place_TK = row_of_pair.view(ids_TK.shape) - perm.offsets[ids_TK.long()]
    columns = [list(table.unbind(dim=1)) for table in (ids_TK.to(torch.int32), place_TK.to(torch.int32), weights_TK)]
    return (num_experts, *columns, int(perm.offsets.diff().max()))


def _batched(rows_ECK: Tensor, weights_ENK: Tensor, bias_E1N: Tensor | None) -> Tensor:
    out_ECN = torch.bmm(rows_ECK.to(weights_ENK.dtype), weights_ENK.transpose(1, 2))
    return out_ECN if bias_E1N is None else out_ECN + bias_E1N


ADAPTER = Adapter(
    name="tutel",
    package="tutel",
    distribution="tutel",
    install="pip install git+https://github.com/microsoft/tutel@main (compiles against your CUDA)",
    formats=frozenset({("bf16", "bf16")}),
    capability=(7, 0),
    limits=limits,
    prepare=prepare,
)
