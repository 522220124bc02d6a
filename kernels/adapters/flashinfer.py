"""FlashInfer's CUTLASS experts: ``cutlass_fused_moe``.

Signature as of 0.7.4. The first weights hold the up rows before the gates. On sm_90 it multiplies BF16, and E4M3 with
128x128 weight scales, quantising the BF16 input itself. It compiles 181 C++ units when first called, or takes them
from flashinfer-jit-cache, so the first call of all may outlast a cell's time limit: warm it up once before a run.
"""

import torch
from torch import Tensor

from kernels.adapters.base import Adapter, Layer, LayerRequest, load
from kernels.adapters.layout import fp8_codes, order_refusal, ordered
from kernels.moe import ExpertWeights


def limits(request: LayerRequest) -> str | None:
    """Whole blocks for fp8_block, weights on the output, no dropped pairs."""
    if request.recipe.weights == "e4m3_block" and (request.hidden % 128 or request.intermediate % 128):
        return f"quantises whole groups of 128: hidden {request.hidden}, intermediate {request.intermediate}"
    if request.has_dropped:
        return "is called here with all experts on one rank and no pair dropped"
    if request.weight_on != "output":
        return "weights the output of an expert, not its input"
    return order_refusal(request, "up_first")


def prepare(experts: ExpertWeights, request: LayerRequest) -> Layer:
    """The layer on ``cutlass_fused_moe``; the first weights are copied, up before gate."""
    fused = load("flashinfer.fused_moe").cutlass_fused_moe
    moved = ordered(experts, "up_first")
    bias13, bias2 = (None if b is None else b.to(torch.bfloat16) for b in (moved.bias13, moved.bias2))
    blocked = moved.w13.format == "e4m3_block"
    w13, w2 = (fp8_codes(w) if blocked else w.data for w in (moved.w13, moved.w2))
    scales = [moved.w13.scale, moved.w2.scale] if blocked else []
    alpha = beta = limit = None
    if moved.activation.kind == "clamped_swiglu":
        numbers = (moved.activation.alpha, 1.0, moved.activation.limit)
        alpha, beta, limit = (torch.full((request.num_experts,), n, device=w13.device) for n in numbers)

    def layer(x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        out = fused(
            x_TH.contiguous(),
            ids_TK,
            weights_TK,
            w13,
            w2,
            torch.bfloat16,
            quant_scales=scales,
            fc1_expert_biases=bias13,
            fc2_expert_biases=bias2,
            swiglu_alpha=alpha,
            swiglu_beta=beta,
            swiglu_limit=limit,
            use_deepseek_fp8_block_scale=blocked,
        )
        return out[0] if isinstance(out, list | tuple) else out

    return layer


ADAPTER = Adapter(
    name="flashinfer",
    package="flashinfer",
    distribution="flashinfer-python",
    install="pip install flashinfer-python==0.7.4 (and its jit cache for your CUDA, or half an hour of compiling)",
    formats=frozenset({("bf16", "bf16"), ("e4m3_block", "e4m3_block")}),
    capability=(9, 0),
    limits=limits,
    prepare=prepare,
)
