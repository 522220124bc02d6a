"""Transformer Engine's ``GroupedLinear``: a grouped cuBLAS product over rows split by host numbers.

The split is a Python list, so every call waits for the device once to learn it and no CUDA graph can hold it. Sorting,
activation and combine are ours. Its parameters are views of our weights.
"""

import torch
from torch import Tensor

from kernels.activation import apply_activation
from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.moe import ExpertWeights
from kernels.permute import combine_rows, gather_rows, sort_by_expert


def limits(request: LayerRequest) -> str | None:
    """Weights on the output, rows of whole 16 bytes."""
    if request.hidden % 8 or request.intermediate % 8:
        return f"wants sizes that divide by 8: hidden {request.hidden}, intermediate {request.intermediate}"
    return None if request.weight_on == "output" else "weights the output of an expert, not its input"


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on two GroupedLinear modules; no copy of the weights."""
    up = _module(experts.w13.data, experts.bias13)
    down = _module(experts.w2.data, experts.bias2)

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        perm = sort_by_expert(ids_TK, request.num_experts)
        splits = perm.offsets.diff().tolist()
        with torch.no_grad():
            rows = up(gather_rows(x_TH, perm, ids_TK.shape[1]), splits)
            rows = down(apply_activation(rows, experts.activation), splits)
        return combine_rows(rows, perm, weights_TK)

    return layer


def _module(weights_ENK: Tensor, bias_EN: Tensor | None) -> torch.nn.Module:
    num_experts, num_columns, width = weights_ENK.shape
    module = load("transformer_engine.pytorch").GroupedLinear(
        num_experts, width, num_columns, bias=bias_EN is not None, params_dtype=torch.bfloat16, device="meta"
    )
    for e in range(num_experts):
        setattr(module, f"weight{e}", torch.nn.Parameter(weights_ENK[e], requires_grad=False))
        if bias_EN is not None:
            setattr(module, f"bias{e}", torch.nn.Parameter(bias_EN[e].to(torch.bfloat16), requires_grad=False))
    return module


ADAPTER = Adapter(
    name="transformer_engine",
    package="transformer_engine",
    distribution="transformer-engine",
    install="pip install --no-build-isolation 'transformer_engine[pytorch]' (compiles against your CUDA)",
    formats=frozenset({("bf16", "bf16")}),
    capability=(8, 0),
    limits=limits,
    prepare=prepare,
)
