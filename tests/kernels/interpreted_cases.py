"""Runs the Triton kernels on the CPU in triton's interpreter and prints how far each is from its torch twin, as JSON.

Started by test_triton_interpreted.py with TRITON_INTERPRET=1, which has to be set before triton is imported.
"""

import json

import torch

from kernels.activation import Activation, apply_activation
from kernels.formats import FORMATS, Quantised
from kernels.grouped_gemm import grouped_gemm, quantise_rows
from kernels.grouped_gemm.tiles import TILES
from kernels.grouped_gemm.triton_gemm import block_table, triton_grouped_gemm
from kernels.moe import moe_layer, prepare_weights
from kernels.permute import block_experts, combine_rows, sort_by_expert
from kernels.reference import moe_reference
from kernels.triton_rows import triton_quantise_block

GEMM_FORMATS = ("bf16", "e4m3_block")
# rows an expert, N, K, rows past the last offset
GEMM_SHAPES = {
    "even": ([2, 3, 0, 6, 8], 128, 128, 0),
    "odd sizes": ([1, 0, 0, 40], 33, 130, 2),
    "no rows in any expert": ([0, 0], 16, 16, 3),
    "several blocks an expert": ([70, 0, 1, 130], 100, 130, 5),
    "21 experts": ([1, 0, 2] * 7, 24, 40, 0),
}


def distance(value: torch.Tensor, twin: torch.Tensor) -> float:
    """Relative RMS difference; infinite if either holds what is not finite."""
    value, twin = value.float(), twin.float()
    if not (value.isfinite().all() and twin.isfinite().all()):
        return float("inf")
    return float((value - twin).norm() / twin.norm().clamp(min=1e-30))


def gemm_case(weights_format: str, counts: list[int], n_size: int, k_size: int, tail: int) -> dict:
    generator = torch.Generator().manual_seed(k_size)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    num_rows = int(offsets[-1]) + tail
    rows = torch.randn(num_rows, k_size, generator=generator).bfloat16()
    dense = torch.randn(len(counts), n_size, k_size, generator=generator)
    weights = FORMATS[weights_format].encode(dense, weights=True)
    bias = torch.randn(len(counts), n_size, generator=generator).bfloat16()
    call = {"activations_format": weights_format, "bias_EN": bias}
    twin = grouped_gemm(rows, offsets, weights, backend="torch", **call)
    out = grouped_gemm(rows, offsets, weights, backend="triton", **call)
    encoded = quantise_rows(rows, weights_format, weights=weights, backend="torch")
    by_tile = [
        distance(triton_grouped_gemm(encoded, offsets, weights, bias_EN=bias, tile=tile), twin)
        for _, tile in TILES[weights_format]
    ]
    return {"distance": max([distance(out, twin), *by_tile]), "tail": float(out[num_rows - tail :].abs().sum())}


def table_case(counts: list[int], block: int, tail: int) -> bool:
    """The table in one launch equals the torch twin with the tail as one more group."""
    offsets = torch.tensor([0, *counts]).cumsum(0)
    experts, starts = block_table(offsets, num_rows=int(offsets[-1]) + tail, block=block)
    twin = block_experts(torch.tensor([*counts, tail]), block)
    return torch.equal(experts, twin.experts) and torch.equal(starts, twin.starts)


def far_weights_case() -> float:
    """C05: the last of 512 experts lies beyond 2^31 elements; only the pages that are touched get memory."""
    num_experts, n_size, k_size, num_rows = 512, 64, 66048, 3
    weights = torch.empty(num_experts, n_size, k_size, dtype=torch.bfloat16)
    assert weights.numel() > 2**31
    generator = torch.Generator().manual_seed(5)
    weights[-1] = torch.randn(n_size, k_size, generator=generator)
    rows = torch.randn(num_rows, k_size, generator=generator).bfloat16()
    offsets = torch.zeros(num_experts + 1, dtype=torch.int64)
    offsets[-1] = num_rows
    quantised = Quantised("bf16", tuple(weights.shape), weights, None, None, "none", "saturate")
    out = triton_grouped_gemm(rows, offsets, quantised)
    return distance(out, rows.float() @ weights[-1].float().T)


def far_rows_case() -> float:
    """C05: the last rows lie beyond 2^31 elements of the input, here by a stride of 2^20."""
    num_rows, k_size = 2100, 64
    rows = torch.empty(num_rows, 1 << 20, dtype=torch.bfloat16)[:, :k_size]
    assert (num_rows - 1) * rows.stride(0) > 2**31
    generator = torch.Generator().manual_seed(6)
    rows.copy_(torch.randn(num_rows, k_size, generator=generator))
    weights = FORMATS["bf16"].encode(torch.randn(1, 16, k_size, generator=generator))
    out = triton_grouped_gemm(rows, torch.tensor([0, num_rows]), weights)
    return distance(out, rows.float() @ weights.data[0].float().T)


def quantise_case(num_rows: int, num_columns: int) -> bool:
    """Values and scales are the twin's, bit for bit, over the whole range of magnitudes."""
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, num_columns, generator=generator) * torch.logspace(-30, 30, num_rows)[:, None]
    x[:, ::7] *= 2.0**-12
    x[0] = 0
    x[-1, -1] = float("nan")
    x = x.bfloat16()
    mine, twin = triton_quantise_block(x), FORMATS["e4m3_block"].encode(x)
    decode = FORMATS["e4m3_block"].decode
    same = torch.allclose(decode(mine), decode(twin), rtol=0, atol=0, equal_nan=True)
    return same and torch.equal(mine.scale, twin.scale)


def activation_case(activation: Activation) -> float:
    h = (4 * torch.randn(7, 2 * 50, generator=torch.Generator().manual_seed(1))).bfloat16()
    return distance(apply_activation(h, activation, backend="triton"), apply_activation(h, activation, backend="torch"))


def combine_case() -> float:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(-1, 5, (9, 3), generator=generator)
    perm = sort_by_expert(ids, 5)
    rows = torch.randn(perm.num_rows, 70, generator=generator).bfloat16()
    weights = torch.rand(9, 3, generator=generator)
    results = [combine_rows(rows, perm, weights, out_dtype=torch.float32, backend=b) for b in ("triton", "torch")]
    return distance(*results)


def layer_case(precision: str) -> float:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(11, 48, generator=generator).bfloat16()
    w13 = (torch.randn(5, 64, 48, generator=generator) / 7).bfloat16()
    w2 = (torch.randn(5, 48, 32, generator=generator) / 6).bfloat16()
    weights, ids = torch.rand(11, 5, generator=generator).topk(2, dim=1)
    ids[4, 1] = -1
    activation = Activation(kind="clamped_swiglu", interleaved=True)
    experts = prepare_weights(w13, w2, precision=precision, activation=activation)
    y = moe_layer(x, ids, weights, experts, backend="triton")
    return distance(y, moe_reference(x, ids, weights, w13, w2, activation=activation))


def main() -> None:
    activations = [Activation(kind, interleaved=i) for kind in ("swiglu", "clamped_swiglu") for i in (False, True)]
    print(
        json.dumps(
            {
                "gemm": {f: {name: gemm_case(f, *s) for name, s in GEMM_SHAPES.items()} for f in GEMM_FORMATS},
                "table": [table_case(s[0], block, s[3]) for s in GEMM_SHAPES.values() for block in (1, 4, 64)],
                "far_offsets": [far_weights_case(), far_rows_case()],
                "quantise": [quantise_case(5, 130), quantise_case(33, 256), quantise_case(2, 1)],
                "activation": [activation_case(activation) for activation in activations],
                "combine": combine_case(),
                "layer": {precision: layer_case(precision) for precision in ("bf16", "fp8_block")},
            }
        )
    )


if __name__ == "__main__":
    main()
