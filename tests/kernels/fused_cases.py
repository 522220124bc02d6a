"""Runs the fused layer in triton's interpreter and prints how far it is from its torch twin, as JSON.

Started by test_fused_interpreted.py with TRITON_INTERPRET=1, which has to be set before triton is imported.
"""

import json

import torch

from kernels.activation import Activation
from kernels.fused import fused_layer
from kernels.grouped_gemm import expert_gemm
from kernels.grouped_gemm.tiles import LAYER_TILES, LayerTiles, Tile, family
from kernels.moe import expert_mlp, moe_layer, prepare_weights
from kernels.permute import block_experts, sort_by_expert
from kernels.recipes import RECIPES
from kernels.triton_permute import plan_pairs

PRECISIONS = ("bf16", "fp8_block", "fp8_row", "fp8_tensor", "mxfp8", "mxfp4_w4a16", "nvfp4_w4a16", "mxfp4_w4a8",
              "mxfp4", "nvfp4")  # fmt: skip
GPT_OSS = Activation("clamped_swiglu", interleaved=True)
OTHER_ORDER = {
    "bf16": LayerTiles(Tile(16, 32, 64, 4, 3, 4, True), Tile(16, 64, 32, 4, 3, 4, True)),
    "e4m3": LayerTiles(Tile(32, 64, 128, 4, 3, 2), Tile(32, 128, 128, 4, 3, 2, True)),
    "fp4": LayerTiles(Tile(32, 128, 128, 4, 3, 4, True), Tile(32, 64, 128, 4, 3, 4, True)),
    "mx8": LayerTiles(Tile(32, 128, 128, 4, 3, 4, True), Tile(32, 64, 128, 4, 3, 4, True)),
}
DESCRIPTORS = {
    "bf16": LayerTiles(Tile(32, 32, 64, 4, 3, 4, tma=True), Tile(32, 64, 32, 4, 3, 2, tma=True)),
    "e4m3": LayerTiles(Tile(32, 64, 128, 4, 3, 4, tma=True), Tile(32, 128, 128, 4, 3, 2, tma=True)),
}


def distance(value, twin):
    value, twin = value.float(), twin.float()
    if not (value.isfinite().all() and twin.isfinite().all()):
        return float("inf")
    return float((value - twin).norm() / twin.norm().clamp(min=1e-30))


def make(precision, tokens, num_experts, top_k, hidden, width, activation=None, bias=False):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    w13 = (torch.randn(num_experts, 2 * width, hidden, generator=generator) / hidden**0.5).bfloat16()
    w2 = (torch.randn(num_experts, hidden, width, generator=generator) / width**0.5).bfloat16()
    weights, ids = torch.rand(tokens, num_experts, generator=generator).topk(top_k, dim=1)
    ids = ids.int()
    if tokens > 3:
        ids[3, 1], ids[2] = -1, -1
    biases = {}
    if bias:
        biases["bias13"] = torch.randn(num_experts, 2 * width, generator=generator).bfloat16()
        biases["bias2"] = torch.randn(num_experts, hidden, generator=generator).bfloat16()
    experts = prepare_weights(w13, w2, precision=precision, activation=activation, **biases).packed()
    return x, ids, weights, experts


def layer_case(precision):
    """Sorted with a clamped, interleaved gate and biases; unsorted with weights on the input; other tiles."""
    x, ids, weights, experts = make(precision, 11, 5, 2, 72, 40, GPT_OSS, bias=True)
    out = {
        "sorted": distance(moe_layer(x, ids, weights, experts, backend="triton"), moe_layer(x, ids, weights, experts))
    }
    few = make(precision, 1, 40, 4, 130, 70)
    call = {"weight_on": "input"}
    out["direct"] = distance(moe_layer(*few, backend="triton", **call), moe_layer(*few, **call))
    if precision not in ("bf16", "fp8_block", "mxfp8", "nvfp4_w4a16"):
        return out
    x, ids, weights, experts = make(precision, 40, 3, 2, 192, 136)
    kind = family(RECIPES[precision].weights)
    for name, tiles in (("other tiles", OTHER_ORDER[kind]), ("large tiles", LAYER_TILES[kind][-1][1])):
        out[name] = distance(fused_layer(x, ids, weights, experts, tiles=tiles), moe_layer(x, ids, weights, experts))
    return out


def descriptor_case(precision):
    """Weights through tensor descriptors, with columns and a K that no tile divides; and how often they were taken."""
    taken, out = [], {}
    launch = expert_gemm.launch_tma
    expert_gemm.launch_tma = lambda *args, **call: (taken.append(1), launch(*args, **call))
    tiles = DESCRIPTORS[family(RECIPES[precision].weights)]
    sizes = {"halves": (128, 128, None, False), "tails": (208, 144, None, False), "gpt-oss": (80, 48, GPT_OSS, True)}
    for name, (hidden, width, activation, bias) in sizes.items():
        x, ids, weights, experts = make(precision, 40, 3, 2, hidden, width, activation, bias)
        out[name] = distance(fused_layer(x, ids, weights, experts, tiles=tiles), moe_layer(x, ids, weights, experts))
    expert_gemm.launch_tma = launch
    return out | {"taken": len(taken)}


def codes_case():
    """Whether gemm1 that stores codes gives the layer that a quantiser of its own gives, by tokens, to the bit."""
    same = {}
    for tokens, num_experts in ((1, 24), (9, 5)):
        x, ids, weights, experts = make("fp8_block", tokens, num_experts, 4, 128, 256)
        second = Tile(16, 64, 128, 4, 3, 1, True)
        apart, fused = (LayerTiles(Tile(16, columns, 128, 4, 3, 1, True), second) for columns in (64, 128))
        same[tokens] = torch.equal(*(fused_layer(x, ids, weights, experts, tiles=tiles) for tiles in (apart, fused)))
    return same


def mlp_case(precision):
    """Rows in expert order; the rows past the last offset come back as zeros."""
    _, _, _, experts = make(precision, 1, 3, 1, 48, 32)
    offsets, rows = (
        torch.tensor([0, 2, 2, 9]),
        torch.randn(12, 48, generator=torch.Generator().manual_seed(4)).bfloat16(),
    )
    mine = expert_mlp(rows, offsets, experts, backend="triton")
    return {"distance": distance(mine, expert_mlp(rows, offsets, experts)), "tail": float(mine[9:].abs().sum())}


def shared_case():
    x, ids, weights, experts = make("bf16", 6, 4, 2, 32, 16)
    _, _, _, shared = make("bf16", 1, 1, 1, 32, 24)
    call = {"shared": shared}
    return distance(
        moe_layer(x, ids, weights, experts, backend="triton", **call), moe_layer(x, ids, weights, experts, **call)
    )


def plan_case(tokens, num_experts, top_k, block):
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(-1, num_experts, (tokens, top_k), generator=generator, dtype=torch.int32)
    plan = plan_pairs(ids, num_experts, block_m=block)
    if plan.direct:
        return torch.equal(plan.experts, ids.reshape(-1))
    twin = sort_by_expert(ids, num_experts, keep_dropped=True)
    table = block_experts(twin.offsets.diff(), block, num_rows=ids.numel())
    mine = (plan.experts >= 0) & (plan.experts < num_experts)
    used = table.experts >= 0
    return bool(
        torch.equal(plan.order, twin.order)
        and torch.equal(plan.offsets, twin.offsets)
        and torch.equal(plan.experts[mine], table.experts[used])
        and torch.equal(plan.starts[mine], table.starts[used])
    )


def main() -> None:
    plans = [(0, 4, 2), (1, 64, 2), (7, 3, 2), (50, 60, 4), (200, 5, 3), (70, 300, 8), (2100, 9, 4)]
    print(
        json.dumps(
            {
                "layer": {precision: layer_case(precision) for precision in PRECISIONS},
                "descriptors": {
                    precision: descriptor_case(precision) for precision in ("bf16", "fp8_block", "fp8_row")
                },
                "mlp": {precision: mlp_case(precision) for precision in ("bf16", "fp8_block", "nvfp4_w4a16")},
                "codes": codes_case(),
                "shared": shared_case(),
                "plan": {str((*case, block)): plan_case(*case, block) for case in plans for block in (16, 64)},
                "no tokens": list(moe_layer(*make("bf16", 0, 4, 2, 32, 16), backend="triton").shape),
            }
        )
    )


if __name__ == "__main__":
    main()
