"""triton_kernels' ``matmul_ogs``: gather in the first product, SwiGLU in its epilogue, scatter and sum in the second.

Seen with the copy in vLLM 0.20.2. Weights are [E, K, N] with K running fastest, which is [E, N, K] seen transposed;
MXFP4 is swizzled once for the chip at hand. The epilogue takes gate and up rows interleaved and computes
gate * sigmoid(alpha * gate) * (up + 1); for plain SwiGLU, alpha is 1 and the up rows get a bias of -1, in float32.
Its own routing wants a power-of-two k; here the pairs are sorted by ours.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.adapters.layout import ordered
from kernels.formats import Quantised
from kernels.moe import ExpertWeights
from kernels.permute import sort_by_expert

NO_LIMIT = 3e38


def limits(request: LayerRequest) -> str | None:
    """Every pair has an expert, weights on the output, as many experts as 16 bits hold."""
    if request.has_dropped:
        return "has no place for dropped pairs or experts of other ranks"
    if request.num_experts > 2**15:
        return f"numbers experts in 16 bits, not {request.num_experts}"
    return None if request.weight_on == "output" else "weights the output of an expert, not its input"


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on two calls of ``matmul_ogs``; weights are copied when swizzled or interleaved."""
    ogs = load("triton_kernels.matmul_ogs")
    bias13 = _epilogue_bias(experts)
    experts = ordered(replace(experts, bias13=bias13), "interleaved")
    (w13, config13), (w2, config2) = _weights(ogs, experts.w13), _weights(ogs, experts.w2)
    bias2 = None if experts.bias2 is None else experts.bias2.float()
    activation = _activation(ogs, experts)

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        if not len(x_TH):
            return torch.zeros_like(x_TH)
        routing, gather, scatter = _routing(ogs, ids_TK, weights_TK, request.num_experts)
        rows = ogs.matmul_ogs(
            x_TH,
            w13,
            experts.bias13,
            routing,
            gather_indx=gather,
            precision_config=config13,
            fused_activation=activation,
        )
        return ogs.matmul_ogs(
            rows, w2, bias2, routing, scatter_indx=scatter, precision_config=config2, gammas=routing.gate_scal
        )

    return layer


def _epilogue_bias(experts: ExpertWeights) -> Tensor | None:
    """Float32 bias of the first product; plain SwiGLU takes back the 1 that the epilogue adds to up."""
    bias = None if experts.bias13 is None else experts.bias13.float()
    if experts.activation.kind != "swiglu":
        return bias
    if bias is None:
        bias = torch.zeros(experts.w13.shape[:2], device=experts.w13.data.device)
    bias, width = bias.clone(), experts.w13.shape[1] // 2
    bias[:, slice(1, None, 2) if experts.activation.interleaved else slice(width, None)] -= 1
    return bias


def _activation(ogs: Any, experts: ExpertWeights) -> Any:
    clamped = experts.activation.kind == "clamped_swiglu"
    numbers = (experts.activation.alpha, experts.activation.limit) if clamped else (1.0, NO_LIMIT)
    function = load("triton_kernels.swiglu").swiglu_fn
    return ogs.FusedActivation(ogs.FnSpecs("swiglu", function, ("alpha", "limit"), reduction_n=2), numbers)


def _weights(ogs: Any, weights: Quantised) -> tuple[Any, Any]:
    """The operand and its PrecisionConfig."""
    context = ogs.FlexCtx(rhs_data=load("triton_kernels.numerics").InFlexData())
    if weights.format == "bf16":
        return weights.data.transpose(1, 2), ogs.PrecisionConfig(flex_ctx=context)
    tensor, layout = load("triton_kernels.tensor"), load("triton_kernels.tensor_details.layout")
    value_layout, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    scale_layout, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
    values = tensor.wrap_torch_tensor(weights.data.transpose(1, 2), dtype=tensor.FP4)
    scales = tensor.wrap_torch_tensor(weights.scale.transpose(1, 2))
    return (
        tensor.convert_layout(values, value_layout, **value_options),
        ogs.PrecisionConfig(
            weight_scale=tensor.convert_layout(scales, scale_layout, **scale_options), flex_ctx=context
        ),
    )


def _routing(ogs: Any, ids_TK: Tensor, weights_TK: Tensor, num_experts: int) -> tuple[Any, Any, Any]:
    """Routing data, gather and scatter indices of pairs sorted by expert."""
    perm = sort_by_expert(ids_TK, num_experts, keep_dropped=True)
    order = perm.order.to(torch.int32)
    row_of_pair = torch.empty_like(order)
    row_of_pair.scatter_(0, perm.order, torch.arange(len(order), dtype=torch.int32, device=order.device))
    counts = perm.offsets.diff().to(torch.int32)
    ragged = load("triton_kernels.tensor").make_ragged_tensor_metadata(counts, len(order))
    gates = weights_TK.float().flatten().index_select(0, perm.order)
    routing = ogs.RoutingData(gates, counts, num_experts, ids_TK.shape[1], ragged)
    return routing, ogs.GatherIndx(order, row_of_pair), ogs.ScatterIndx(row_of_pair, order)


ADAPTER = Adapter(
    name="triton_kernels",
    package="triton_kernels",
    distribution="triton_kernels",
    install="pip install vllm==0.20.2 (which ships a copy), or python/triton_kernels of the Triton sources you run",
    formats=frozenset({("bf16", "bf16"), ("mxfp4", "bf16")}),
    capability=(9, 0),
    limits=limits,
    prepare=prepare,
)
