"""What tuning times: expert weights of a size, the two GEMMs by tile, and the clock.

E experts, K top-k, T tokens.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from kernels.activation import Activation
from kernels.grouped_gemm.tiles import Tile
from kernels.moe import ExpertWeights, prepare_weights

PRECISIONS = {"bf16": "bf16", "e4m3_block": "fp8_block", "mxfp8": "mxfp8", "mxfp4": "mxfp4_w4a16",
              "nvfp4": "nvfp4_w4a16"}  # fmt: skip
"""Weight format -> the precision that it is tuned in."""
Size = tuple[int, int, int, bool]
"""(hidden, intermediate, top-k, gpt-oss's activation and biases)."""


def make_experts(weights_format: str, size: Size, *, num_experts: int) -> ExpertWeights:
    hidden, width, _, gpt_oss = size
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16).mul_(scale)

    biases = {}
    if gpt_oss:
        biases = {"bias13": normal(num_experts, 2 * width), "bias2": normal(num_experts, hidden)}
    return prepare_weights(
        normal(num_experts, 2 * width, hidden, scale=hidden**-0.5),
        normal(num_experts, hidden, width, scale=width**-0.5),
        precision=PRECISIONS[weights_format],
        activation=Activation("clamped_swiglu", interleaved=True) if gpt_oss else Activation(),
        **biases,
    )


def gemm_calls(experts: ExpertWeights, mean_rows: int, *, top_k: int) -> Callable[[int, Tile], Callable[[], Any]]:
    """``(1 or 2, tile) -> call`` of gemm1 or gemm2 on routed random tokens."""
    from kernels.fused import quantise_middle, quantise_tokens
    from kernels.grouped_gemm.expert_gemm import expert_gemm
    from kernels.triton_permute import RowPlan, plan_pairs

    num_experts, num_tokens = experts.num_experts, max(1, mean_rows * experts.num_experts // top_k)
    generator = torch.Generator("cuda").manual_seed(mean_rows)
    scores = torch.rand(num_tokens, num_experts, generator=generator, device="cuda")
    weights, ids = scores.topk(top_k, dim=1)
    hidden, width = experts.w2.shape[1:]
    inputs = [torch.randn(n, c, device="cuda").bfloat16() for n, c in ((num_tokens, hidden), (ids.numel(), width))]
    x, h = quantise_tokens(inputs[0], experts), quantise_middle(inputs[1], experts)
    w13, w2 = (experts.packed13, experts.packed2) if experts.is_packed else (experts.w13, experts.w2)

    def step(which: int, tile: Tile) -> Callable[[], Any]:
        plan = plan_pairs(ids.int(), num_experts, block_m=tile.block_m) if mean_rows else RowPlan(ids[0], direct=True)
        call = {"num_rows": ids.numel()}
        if which == 1:
            call |= {"top_k": top_k, "activation": experts.activation, "bias_EN": experts.bias13}
            return lambda: expert_gemm(x, w13, plan, tile, **call)
        call |= {"bias_EN": experts.bias2, "weights_P": weights.reshape(-1)}
        return lambda: expert_gemm(h, w2, plan, tile, **call)

    return step


def time_us(step: Callable[[], Any], *, repeats: int) -> float:
    """Median microseconds of a call over replays of a graph of ``repeats`` calls."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            step()
    samples = []
    for replay in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples += [1e3 * start.elapsed_time(end) / repeats] if replay else []
    return statistics.median(samples)
