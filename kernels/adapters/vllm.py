"""vLLM's Triton experts: ``fused_experts`` sorts, multiplies, activates and sums by itself.

Seen with 0.20.2. It needs vLLM's compiled ``_moe_C`` and ``_C``: without them the alignment of pairs is some twenty
torch operations. Weights stay [E, 2I, H] and [E, H, I]; tiles are vLLM's defaults where it ships no tuning.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.adapters.layout import fp8_codes, order_refusal, ordered
from kernels.moe import ExpertWeights

BLOCK = [128, 128]
OAI_ALPHA, OAI_LIMIT = 1.702, 7.0
FUSED_MOE = "vllm.model_executor.layers.fused_moe"


def limits(request: LayerRequest) -> str | None:
    """Whole blocks for fp8_block, gpt-oss's own constants in its activation, no dropped pairs."""
    kind = request.activation.kind
    if kind == "clamped_swiglu" and (request.activation.alpha, request.activation.limit) != (OAI_ALPHA, OAI_LIMIT):
        return f"clamps SwiGLU with alpha {OAI_ALPHA} and limit {OAI_LIMIT} alone"
    if request.recipe.weights == "e4m3_block" and (request.hidden % 128 or request.intermediate % 128):
        return f"quantises whole groups of 128: hidden {request.hidden}, intermediate {request.intermediate}"
    if request.has_dropped:
        return "wants a map of experts for pairs of other ranks, which this adapter does not make"
    if request.weight_on == "input" and request.top_k > 1:
        return f"weights an expert's input for one expert a token alone, not {request.top_k}"
    return order_refusal(request, "interleaved" if kind == "clamped_swiglu" else "stacked")


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on ``fused_experts``; weights are copied only where gate and up change places."""
    clamped = experts.activation.kind == "clamped_swiglu"
    experts = ordered(experts, "interleaved" if clamped else "stacked")
    load("vllm._custom_ops")
    fused = load(f"{FUSED_MOE}.fused_moe").fused_experts
    kinds = load(f"{FUSED_MOE}.activation").MoEActivation
    activation = kinds.SWIGLUOAI if clamped else kinds.SILU
    w13, w2, config = _weights(experts)

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        return fused(
            x_TH.contiguous(),
            w13,
            w2,
            weights_TK,
            ids_TK,
            inplace=False,
            activation=activation,
            apply_router_weight_on_input=request.weight_on == "input",
            global_num_experts=request.num_experts,
            quant_config=config,
        )

    return layer


def _weights(experts: ExpertWeights) -> tuple[Tensor, Tensor, Any]:
    """Both weights and vLLM's description of their scales and biases; None for plain BF16."""
    configs = load(f"{FUSED_MOE}.config")
    bias13, bias2 = (None if b is None else b.to(torch.bfloat16) for b in (experts.bias13, experts.bias2))
    if experts.w13.format == "bf16":
        config = None if bias13 is None else configs.biased_moe_quant_config(bias13, bias2)
        return experts.w13.data, experts.w2.data, config
    by_row = experts.w13.format == "e4m3_row"
    scales = [w.scale[..., None] if by_row else w.scale for w in (experts.w13, experts.w2)]
    config = configs.fp8_w8a8_moe_quant_config(
        w1_scale=scales[0],
        w2_scale=scales[1],
        w1_bias=bias13,
        w2_bias=bias2,
        per_act_token_quant=by_row,
        per_out_ch_quant=by_row,
        block_shape=BLOCK if experts.w13.format == "e4m3_block" else None,
    )
    return fp8_codes(experts.w13), fp8_codes(experts.w2), config


ADAPTER = Adapter(
    name="vllm",
    package="vllm",
    distribution="vllm",
    install="pip install vllm==0.20.2 (it pins its own torch)",
    formats=frozenset({("bf16", "bf16"), *((f"e4m3_{g}", f"e4m3_{g}") for g in ("tensor", "row", "block"))}),
    capability=(8, 9),
    limits=limits,
    prepare=prepare,
)
