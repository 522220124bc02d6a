"""Runs the microscaling kernels in triton's interpreter and prints how far they are from their torch twins, as JSON.

Started by test_mx_kernels.py with TRITON_INTERPRET=1, which has to be set before triton is imported.
"""

import json

import torch

from kernels.activation import Activation, apply_activation
from kernels.backend import SCALED_PAIRS
from kernels.formats import FORMATS
from kernels.fused import fused_layer
from kernels.grouped_gemm.expert_gemm import expert_gemm
from kernels.grouped_gemm.packed_mx8 import pack_mxfp8
from kernels.grouped_gemm.tiles import Tile
from kernels.moe import expert_mlp, moe_layer, prepare_weights
from kernels.offload import ExpertCache
from kernels.offloaded_layer import offloaded_layer
from kernels.triton_permute import plan_sorted
from kernels.triton_rows_mx import decode_mx_rows, round_mx_rows

OFFSETS = torch.tensor([0, 5, 5, 21])
SIZES = ((40, 96), (34, 130), (64, 256), (8, 33))


def stretched(*shape, seed=1):
    """Rows from 1e-3 to 1e3, so that a scale taken from another row shows."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x * torch.logspace(-3, 3, shape[-2])[:, None]


def product(weights_format, rows_format, columns, k_size, tile, *, scaled, activation=None):
    """Largest distance of a column of gemm1 (``activation``) or gemm2 from the product of the decoded operands."""
    weights = FORMATS[weights_format].encode(stretched(3, columns, k_size), weights=True)
    rows = FORMATS[rows_format].encode(stretched(21, k_size, seed=2))
    plan = plan_sorted(OFFSETS, num_rows=21, block_m=tile.block_m)
    operands = (rows, weights)
    if not scaled:
        operands = decode_mx_rows(rows, paired=True), pack_mxfp8(weights, gated=activation is not None)
    out = expert_gemm(*operands, plan, tile, num_rows=21, activation=activation)
    w, a = FORMATS[weights_format].decode(weights), FORMATS[rows_format].decode(rows)
    expected = torch.cat([a[:5] @ w[0].T, a[5:] @ w[2].T])
    if activation is not None:
        expected = apply_activation(expected, activation)
    return float(((out.float() - expected).norm(dim=0) / expected.norm(dim=0)).max())


def products():
    found, gpt_oss = {}, Activation("clamped_swiglu", interleaved=True)
    for columns, k_size in SIZES:
        for swap in (True, False):
            tile = Tile(16, 32, 128, 4, 3, 2, swap)
            for pair in SCALED_PAIRS:
                found[f"{pair} {columns} {k_size} {swap}"] = product(*pair, columns, k_size, tile, scaled=True)
        packed = {"gemm2": None, "gemm1": Activation(), "gpt-oss": gpt_oss}
        for name, activation in packed.items():
            tile = Tile(16, 32, 128, 4, 3, 2, True)
            found[f"packed {name} {columns} {k_size}"] = product(
                "mxfp8", "mxfp8", columns, k_size, tile, scaled=False, activation=activation
            )
    found["scaled gemm1"] = product(
        "mxfp4", "mxfp8", 40, 96, Tile(16, 32, 128, 4, 3, 2, True), scaled=True, activation=gpt_oss
    )
    return found


def rows_case(dtype, name, rule, overflow):
    """Rounded and decoded rows, and decoded ones in pairs, equal the twins' to the bit, NaN in the same places."""
    x = stretched(37, 203) * torch.logspace(-27, 27, 37)[:, None]
    x[3, 5], x[4, 9], x[6], x[7] = float("nan"), float("inf"), 0, x[7] / x[7].abs().max() * 1e-36
    q = FORMATS[name].encode(x.to(dtype), scale_rule=rule, overflow=overflow)
    expected = FORMATS[name].decode(q, torch.bfloat16)
    found = [round_mx_rows(x.to(dtype), name=name, scale_rule=rule, overflow=overflow)]
    if name == "mxfp8":
        found.append(decode_mx_rows(q))
        paired = decode_mx_rows(q, paired=True).unflatten(1, (-1, 2, 64)).transpose(2, 3).flatten(1)
        assert not paired[:, 203:].any()
        found.append(paired[:, :203])
    return all(torch.equal(rows.view(torch.int16), expected.view(torch.int16)) for rows in found)


def nan_case():
    """A NaN weight spoils its own output column, of every row of its expert, and no other."""
    dense = torch.randn(2, 24, 70, generator=torch.Generator().manual_seed(3))
    dense[1, 5, 40] = float("nan")
    packed = pack_mxfp8(FORMATS["mxfp8"].encode(dense))
    rows = round_mx_rows(torch.randn(9, 70), name="mxfp8", scale_rule="floor", overflow="saturate", paired=True)
    offsets = torch.tensor([0, 4, 9])
    tile = Tile(16, 32, 128, 4, 3, 1, True)
    out = expert_gemm(rows, packed, plan_sorted(offsets, num_rows=9, block_m=16), tile, num_rows=9)
    expected = torch.zeros(9, 24, dtype=torch.bool)
    expected[4:, 5] = True
    return torch.equal(out.isnan(), expected)


def empty_case(precision):
    """No tokens; tokens whose every pair is dropped; the same call twice."""
    made = torch.randn(5, 64, 48), torch.randn(5, 48, 32)
    experts = prepare_weights(*(w.bfloat16() for w in made), precision=precision).packed()
    x = torch.randn(3, 48).bfloat16()
    ids, weights = torch.tensor([[0, 4], [-1, -1], [4, 0]], dtype=torch.int32), torch.ones(3, 2)
    none = fused_layer(x[:0], ids[:0], weights[:0], experts)
    dropped = moe_layer(x, torch.full_like(ids, -1), weights, experts, backend="triton")
    first, second = (moe_layer(x, ids, weights, experts, backend="triton") for _ in range(2))
    return list(none.shape), float(dropped.abs().sum()), torch.equal(first, second), float(first[1].abs().sum())


def encoded_case(precision):
    """Rows that come encoded, as from an FP8 dispatch, give what the same rows give that are encoded here."""
    made = torch.randn(3, 80, 72), torch.randn(3, 72, 40)
    experts = prepare_weights(*(w.bfloat16() / 8 for w in made), precision=precision).packed()
    rows, offsets = torch.randn(21, 72).bfloat16(), OFFSETS
    encoded = FORMATS[experts.recipe.activations].encode(rows)
    both = [expert_mlp(x, offsets, experts, backend="triton") for x in (rows, encoded)]
    return bool(both[0].any()) and torch.equal(*both)


def offload_case(precision):
    """The largest distance of a layer over 4 packed slots for 9 experts, in one wave and in several, from without."""
    made = torch.randn(9, 128, 64), torch.randn(9, 64, 64)
    gpt_oss = Activation("clamped_swiglu", interleaved=True)
    experts = prepare_weights(*(w.bfloat16() / 8 for w in made), precision=precision, activation=gpt_oss).packed()
    cache = ExpertCache(experts, num_slots=4, device=torch.device("cpu"))
    assert cache.weights.backend_on(cache.device, "triton") == "triton"
    worst = 0.0
    for tokens in (1, 7):
        weights, ids = torch.rand(tokens, 9).topk(3, dim=1)
        call = torch.randn(tokens, 64).bfloat16(), ids.int(), weights
        y = offloaded_layer(*call, cache, backend="triton").float()
        expected = moe_layer(*call, experts, backend="triton").float()
        worst = max(worst, float((y - expected).norm() / expected.norm()))
    return worst


def main() -> None:
    rows = [
        (dtype, name, rule, overflow)
        for dtype in (torch.bfloat16, torch.float32)
        for name in ("mxfp8", "mxfp4")
        for rule in ("floor", "ceil", "even")
        for overflow in (("saturate", "nan") if name == "mxfp8" else ("saturate",))
    ]
    print(
        json.dumps(
            {
                "products": products(),
                "rows": {str(case): rows_case(*case) for case in rows},
                "nan": nan_case(),
                "encoded": {name: encoded_case(name) for name in ("mxfp8", "mxfp4_w4a8", "mxfp4", "nvfp4")},
                "offload": {name: offload_case(name) for name in ("mxfp8", "mxfp4_w4a16", "mxfp4_w4a8")},
                "empty": {name: empty_case(name) for name in ("mxfp8", "mxfp4_w4a8", "nvfp4")},
            }
        )
    )


if __name__ == "__main__":
    main()
