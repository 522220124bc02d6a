"""The same kernels on a GPU: against their torch twins on the CPU, at sizes beyond 32 bits, and inside a CUDA graph."""

import pytest
import torch

from kernels.activation import Activation, apply_activation
from kernels.backend import gemm_backend_on, layer_backend_on
from kernels.formats import FORMATS, Quantised
from kernels.grouped_gemm import grouped_gemm, quantise_rows
from kernels.moe import math_path, moe_layer, prepare_weights
from kernels.permute import combine_rows, sort_by_expert
from kernels.recipes import RECIPES
from kernels.reference import moe_reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
BF16_ERROR = FORMATS["bf16"].tolerance
GEMM_FORMATS = ("bf16", "e4m3_block")


def rms(value, expected):
    value, expected = value.float().cpu(), expected.float().cpu()
    return float((value - expected).norm() / expected.norm().clamp(min=1e-30))


def need_format(name):
    if gemm_backend_on(torch.device("cuda"), "auto", name, name) != "triton":
        pytest.skip(f"{name} does not run in triton on this GPU")


def make_layer(num_tokens, *, num_experts=8, top_k=8, hidden=256, width=128, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, hidden, generator=generator).bfloat16()
    weights, ids = torch.rand(num_tokens, num_experts, generator=generator).topk(top_k, dim=1)
    w13 = torch.randn(num_experts, 2 * width, hidden, generator=generator) / hidden**0.5
    w2 = torch.randn(num_experts, hidden, width, generator=generator) / width**0.5
    return x, ids.int(), weights, w13.bfloat16(), w2.bfloat16()


def allowed(precision):
    recipe = RECIPES[precision]
    return 2 * (FORMATS[recipe.weights].tolerance + FORMATS[recipe.activations].tolerance)


@pytest.mark.parametrize("weights_format", GEMM_FORMATS)
@pytest.mark.parametrize(
    ("counts", "n_size", "k_size", "tail"),
    [
        ([2, 3, 0, 6, 8], 128, 256, 0),
        ([1, 0, 0, 40], 33, 130, 2),
        ([0, 0], 64, 64, 3),
        ([700, 0, 1, 1300], 2880, 2880, 5),
        ([162, 0, 2577, 446, 0, 83], 256, 512, 0),
        ([20, 33, 64, 50], 512, 1024, 7),
        ([1, 0, 2] * 53, 96, 160, 0),
    ],
)
def test_triton_gemm_equals_its_twin_on_gpu(weights_format, counts, n_size, k_size, tail):
    need_format(weights_format)
    generator = torch.Generator().manual_seed(n_size)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    rows = torch.randn(int(offsets[-1]) + tail, k_size, generator=generator).bfloat16()
    weights = FORMATS[weights_format].encode(
        torch.randn(len(counts), n_size, k_size, generator=generator), weights=True
    )
    bias = torch.randn(len(counts), n_size, generator=generator).bfloat16()
    encoded = quantise_rows(rows, weights_format, weights=weights)
    twin = grouped_gemm(encoded, offsets, weights, activations_format=weights_format, bias_EN=bias)
    out = grouped_gemm(
        encoded.to("cuda"),
        offsets.cuda(),
        weights.to("cuda"),
        activations_format=weights_format,
        bias_EN=bias.cuda(),
        backend="triton",
    )
    assert rms(out, twin) <= BF16_ERROR
    assert out[len(rows) - tail :].abs().sum() == 0


@pytest.mark.parametrize("precision", RECIPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 7, 64, 130, 1000])
def test_c14_layer_on_gpu_equals_the_reference(precision, num_tokens):
    x, ids, weights, w13, w2 = make_layer(num_tokens)
    experts = prepare_weights(w13, w2, precision=precision).to("cuda")
    y = moe_layer(x.cuda(), ids.cuda(), weights.cuda(), experts)
    assert y.shape == x.shape
    assert y.dtype == torch.bfloat16
    if num_tokens:
        assert rms(y, moe_reference(x, ids, weights, w13, w2)) <= allowed(precision)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_dropped_pairs_biases_and_interleaving_on_gpu(backend):
    x, ids, weights, w13, w2 = make_layer(50, num_experts=60, top_k=4)
    ids[::3, 1] = -1
    ids[7] = -1
    extra = {
        "bias13": torch.randn(60, 256).bfloat16(),
        "bias2": torch.randn(60, 256).bfloat16(),
        "activation": Activation("clamped_swiglu", interleaved=True),
    }
    experts = prepare_weights(w13, w2, precision="bf16", **extra).to("cuda")
    y = moe_layer(x.cuda(), ids.cuda(), weights.cuda(), experts, backend=backend)
    assert rms(y, moe_reference(x, ids, weights, w13, w2, **extra)) <= allowed("bf16")
    assert y[7].abs().sum() == 0


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_c03_memory_of_a_busy_run_does_not_leak_into_empty_experts(backend):
    counts = [162, 0, 2577, 446, 0, 83]
    weights = FORMATS["bf16"].encode(torch.randn(6, 64, 64), weights=True).to("cuda")
    rows = torch.randn(sum(counts) + 9, 64, device="cuda").bfloat16()
    offsets = torch.tensor([0, *counts], device="cuda").cumsum(0)
    call = {"activations_format": "bf16", "backend": backend}
    poison = grouped_gemm(rows * float("inf"), offsets, weights, **call)
    del poison
    first = grouped_gemm(rows, offsets, weights, **call)
    assert first.isfinite().all()
    assert first[-9:].abs().sum() == 0
    assert torch.equal(first, grouped_gemm(rows, offsets, weights, **call))


def test_quantiser_gives_the_codes_of_its_twin_on_gpu():
    need_format("e4m3_block")
    weights = FORMATS["e4m3_block"].encode(torch.randn(1, 8, 7000), weights=True)
    rows = (torch.randn(333, 7000) * torch.logspace(-20, 20, 333)[:, None]).bfloat16()
    rows[5] = 0
    twin = quantise_rows(rows, "e4m3_block", weights=weights)
    mine = quantise_rows(rows.cuda(), "e4m3_block", weights=weights.to("cuda"), backend="triton")
    assert torch.equal(mine.data.cpu(), twin.data)
    assert torch.equal(mine.scale.cpu(), twin.scale)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", ["swiglu", "clamped_swiglu"])
def test_activation_equals_its_twin_on_gpu(kind, interleaved):
    activation = Activation(kind, interleaved=interleaved)
    h = (4 * torch.randn(333, 2 * 300)).bfloat16()
    assert rms(apply_activation(h.cuda(), activation), apply_activation(h, activation)) <= BF16_ERROR


def test_combine_equals_its_twin_on_gpu_and_repeats():
    ids = torch.stack([torch.randperm(16)[:4] for _ in range(100)])
    ids[::5, 2] = -1
    perm, perm_gpu = sort_by_expert(ids, 16), sort_by_expert(ids.cuda(), 16)
    assert perm.order.tolist() == perm_gpu.order.tolist()
    rows, weights = torch.randn(perm.num_rows, 1000).bfloat16(), torch.rand(100, 4)
    twin = combine_rows(rows, perm, weights, out_dtype=torch.float32)
    results = [combine_rows(rows.cuda(), perm_gpu, weights.cuda(), out_dtype=torch.float32) for _ in range(3)]
    assert rms(results[0], twin) <= 1e-6
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize(
    "precision", ["bf16", "fp8_block", "fp8_row", "mxfp8", "mxfp4_w4a16", "mxfp4_w4a8", "nvfp4_w4a16"]
)
def test_layer_waits_for_nothing_and_replays_in_a_graph(precision):
    recipe = RECIPES[precision]
    if layer_backend_on(torch.device("cuda"), "auto", recipe.weights, recipe.activations) != "triton":
        pytest.skip(f"{precision} does not run in triton on this GPU")
    x, ids, weights, w13, w2 = make_layer(33)
    x2, ids2, weights2, _, _ = make_layer(33, seed=7)
    ids2[3] = -1
    experts = prepare_weights(w13, w2, precision=precision).to("cuda")
    inputs = [x.cuda(), ids.cuda(), weights.cuda()]
    moe_layer(*inputs, experts, backend="triton")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        moe_layer(*inputs, experts, backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = moe_layer(*inputs, experts, backend="triton")
    for case in ((x, ids, weights), (x2, ids2, weights2)):
        for buffer, value in zip(inputs, case, strict=True):
            buffer.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert rms(y, moe_reference(*case, w13, w2)) <= allowed(precision)


@pytest.mark.parametrize("weights_format", GEMM_FORMATS)
def test_c05_offsets_beyond_32_bits_on_gpu(weights_format):
    need_format(weights_format)
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of free GPU memory")
    num_rows, num_experts = 56_000 * 8, 512
    weights = FORMATS[weights_format].encode(torch.randn(2, 7168, 128), weights=True)
    rows = torch.randn(128, 128).bfloat16().repeat(num_rows // 128, 1)
    offsets = torch.tensor([0, 200_000, num_rows])
    encoded = quantise_rows(rows[-64:], weights_format, weights=weights)
    twin = grouped_gemm(encoded, torch.tensor([0, 0, 64]), weights, activations_format=weights_format)
    out = grouped_gemm(rows.cuda(), offsets.cuda(), weights.to("cuda"), activations_format=weights_format)
    assert out.numel() > 2**31
    assert rms(out[-64:], twin) <= BF16_ERROR
    del out
    element, parts = torch.bfloat16 if weights_format == "bf16" else torch.uint8, {}
    small = FORMATS[weights_format].encode(torch.randn(1, 2048, 4096), weights=True)
    parts["data"] = torch.empty(num_experts, 2048, 4096, dtype=element, device="cuda")
    parts["data"][-1] = small.data[0].cuda()
    if small.scale is not None:
        parts["scale"] = torch.ones(num_experts, *small.scale.shape[1:], device="cuda")
        parts["scale"][-1] = small.scale[0].cuda()
    large = Quantised(
        weights_format, (num_experts, 2048, 4096), parts["data"], parts.get("scale"), None, "none", "saturate"
    )
    rows = torch.randn(40, 4096).bfloat16()
    last_only = torch.zeros(num_experts + 1, dtype=torch.int64)
    last_only[-1] = 40
    out = grouped_gemm(rows.cuda(), last_only.cuda(), large, activations_format=weights_format)
    assert rms(out, grouped_gemm(rows, torch.tensor([0, 40]), small, activations_format=weights_format)) <= BF16_ERROR


@pytest.mark.parametrize("precision", ["bf16", "fp8_block", "mxfp8", "mxfp4_w4a16", "nvfp4_w4a16"])
@pytest.mark.parametrize(("num_experts", "top_k", "num_tokens"), [(8, 2, 3), (60, 4, 700), (512, 8, 2), (512, 10, 300)])
def test_fused_layer_leaves_nothing_unwritten_and_repeats(precision, num_experts, top_k, num_tokens):
    x, ids, weights, w13, w2 = make_layer(num_tokens, num_experts=num_experts, top_k=top_k, seed=num_tokens)
    ids[-1, 0] = -1
    experts = prepare_weights(w13, w2, precision=precision).to("cuda")
    inputs = (x.cuda(), ids.cuda(), weights.cuda())
    twin = moe_layer(*inputs, experts, backend="torch")
    for _ in range(2):
        poison = torch.full((num_tokens * top_k * 2048,), float("nan"), device="cuda", dtype=torch.bfloat16)
        del poison
        y = moe_layer(*inputs, experts)
        # Where rows are quantised a last bit of gemm1 can move a code.
        assert rms(y, twin) <= 10 * BF16_ERROR + FORMATS[RECIPES[precision].activations].tolerance
        assert torch.equal(y, moe_layer(*inputs, experts))


def test_math_path_of_this_gpu():
    here = {"device_type": "cuda", "capability": torch.cuda.get_device_capability()}
    assert math_path("bf16", **here) == "native"
    assert math_path("mxfp4_w4a16", **here) == "upcast"
    if here["capability"] >= (8, 9):
        assert math_path("fp8_block", **here) == "native"
