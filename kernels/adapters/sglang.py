"""SGLang's Triton experts: ``fused_experts`` of its MoE runner.

Signature as of 0.5.23. It reads process-wide server arguments, so a set for a dummy model is published once. Weights
stay [E, 2I, H] and [E, H, I], gate and up in either order.
"""

import torch
from torch import Tensor

from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.adapters.layout import fp8_codes, order_refusal, ordered
from kernels.moe import ExpertWeights

BLOCK = [128, 128]
MOE = "sglang.srt.layers.moe"


def limits(request: LayerRequest) -> str | None:
    """Whole blocks for fp8_block, plain SwiGLU in stacked rows, no dropped pairs."""
    if request.recipe.weights == "e4m3_block" and (request.hidden % 128 or request.intermediate % 128):
        return f"quantises whole groups of 128: hidden {request.hidden}, intermediate {request.intermediate}"
    if request.has_dropped:
        return "is called here with all experts on one rank and no pair dropped"
    if request.weight_on == "input" and request.top_k > 1:
        return f"weights an expert's input for one expert a token alone, not {request.top_k}"
    return order_refusal(request, "stacked") if request.activation.kind == "swiglu" else None


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on ``fused_experts``; weights are copied only where gate and up change places."""
    clamped = experts.activation.kind == "clamped_swiglu"
    experts = experts if clamped else ordered(experts, "stacked")
    _publish_arguments()
    fused = load(f"{MOE}.moe_runner.triton_utils.fused_moe").fused_experts
    topk_output = load(f"{MOE}.topk").StandardTopKOutput
    config = load(f"{MOE}.moe_runner.base").MoeRunnerConfig(
        num_experts=request.num_experts,
        num_local_experts=request.num_experts,
        activation="silu",
        inplace=False,
        apply_router_weight_on_input=request.weight_on == "input",
        gemm1_alpha=experts.activation.alpha if clamped else None,
        gemm1_clamp_limit=experts.activation.limit if clamped else None,
        gate_up_interleaved=experts.activation.interleaved,
    )
    bias13, bias2 = (None if b is None else b.to(torch.bfloat16) for b in (experts.bias13, experts.bias2))
    is_fp8, by_row = experts.w13.format != "bf16", experts.w13.format == "e4m3_row"
    w13, w2 = (fp8_codes(w) if is_fp8 else w.data for w in (experts.w13, experts.w2))
    scale13, scale2 = (w.scale[..., None] if by_row else w.scale for w in (experts.w13, experts.w2))
    block = BLOCK if experts.w13.format == "e4m3_block" else None

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        return fused(
            x_TH.contiguous(),
            w13,
            w2,
            topk_output(weights_TK, ids_TK, weights_TK),
            config,
            b1=bias13,
            b2=bias2,
            use_fp8_w8a8=is_fp8,
            per_channel_quant=by_row,
            w1_scale=scale13,
            w2_scale=scale2,
            block_shape=block,
        )

    return layer


def _publish_arguments() -> None:
    arguments = load("sglang.srt.server_args")
    arguments.set_global_server_args_for_scheduler(arguments.ServerArgs(model_path="dummy"))


ADAPTER = Adapter(
    name="sglang",
    package="sglang",
    distribution="sglang",
    install="pip install sglang==0.5.23 (it pins its own torch)",
    formats=frozenset({("bf16", "bf16"), *((f"e4m3_{g}", f"e4m3_{g}") for g in ("tensor", "row", "block"))}),
    capability=(8, 9),
    limits=limits,
    prepare=prepare,
)
