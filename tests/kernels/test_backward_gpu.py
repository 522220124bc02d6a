"""The backward on a GPU: kernels against their torch twins, beyond 32 bits, in a CUDA graph, and a whole layer."""

import pytest
import torch

from kernels.activation import Activation
from kernels.backward import TRAIN_RECIPES, train_layer
from kernels.backward.products import bias_grad
from kernels.formats import FORMATS
from kernels.grouped_gemm.dgrad import dgrad_backend, grouped_dgrad
from kernels.grouped_gemm.wgrad import grouped_wgrad
from kernels.reference import moe_reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
PAIRS = (("bf16", "bf16"), ("e5m2_block", "e4m3_block"), ("e5m2_tensor", "e4m3_tensor"), ("e4m3_block", "e4m3_block"))
SHAPES = (
    ([1, 0, 0, 40], 48, 130, 2),
    ([700, 0, 1, 1300], 512, 768, 5),
    ([0, 0], 64, 64, 3),
    ([1, 0, 2] * 53, 96, 160, 0),
)
FLOAT32_SUMS = 2e-5
# Hopper's FP8 matrix unit drops what is below 2^-13 of the largest addend within a product of 128 (the test of
# ``_scaled_mm`` below sees it); products of 128 are added in float32.
FP8_SUMS = 2.0**-12


def rms(value, expected):
    value, expected = value.double().cpu(), expected.double().cpu()
    assert value.isfinite().all()
    return float((value - expected).norm() / expected.norm().clamp(min=1e-30))


def need(formats):
    if dgrad_backend(torch.device("cuda"), "auto", *formats) != "triton":
        pytest.skip(f"{formats} do not run in triton on this GPU")


def operands(counts, n_size, k_size, tail):
    generator = torch.Generator().manual_seed(n_size)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    num_rows = int(offsets[-1]) + tail
    grads, rows = (torch.randn(num_rows, n, generator=generator).bfloat16() for n in (n_size, k_size))
    return grads, rows, offsets, generator


@pytest.mark.parametrize("formats", PAIRS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_wgrad_and_dgrad_equal_their_twins_on_gpu(formats, shape):
    need(formats)
    counts, n_size, k_size, tail = shape
    grads, rows, offsets, generator = operands(*shape)
    how = {"grads_format": formats[0], "rows_format": formats[1]}
    sums = FLOAT32_SUMS if formats[0] == "bf16" else FP8_SUMS
    twin = grouped_wgrad(grads, rows, offsets, backend="torch", **how)
    assert rms(grouped_wgrad(grads.cuda(), rows.cuda(), offsets.cuda(), **how), twin) <= sums
    w = FORMATS[formats[1]].encode(torch.randn(len(counts), k_size, n_size, generator=generator), weights=True)
    encoded = grads if formats[0] == "bf16" else FORMATS[formats[0]].encode(grads)
    twin = grouped_dgrad(encoded, offsets, w, grads_format=formats[0], backend="torch")
    out = grouped_dgrad(encoded.to("cuda"), offsets.cuda(), w.to("cuda"), grads_format=formats[0])
    assert rms(out, twin) <= FORMATS["bf16"].tolerance
    assert not out[len(out) - tail :].any()


def test_bias_gradients_repeat_bit_for_bit():
    grads, _, offsets, _ = operands([700, 0, 1, 1300], 512, 64, 5)
    first, second = (bias_grad(grads.cuda(), offsets.cuda()) for _ in range(2))
    assert torch.equal(first, second)
    assert rms(first, bias_grad(grads, offsets)) <= FLOAT32_SUMS


@pytest.mark.parametrize("precision", [name for name in TRAIN_RECIPES if name != "exact"])
def test_layer_gradients_on_gpu(precision):
    """Against float32 autograd of the reference on the same GPU, within what the formats explain."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(300, 8, generator=generator).topk(3, dim=1).indices.int()
    ids[::7, 2] = -1
    shapes = {"x": (300, 256), "weights": (300, 3), "w13": (8, 384, 256), "w2": (8, 256, 192)}
    values = {n: (torch.randn(*s, generator=generator) / (s[-1] ** 0.5 if n != "x" else 1)).bfloat16()
              for n, s in shapes.items()}  # fmt: skip
    upstream = torch.randn(300, 256, generator=generator).bfloat16().cuda()
    activation = Activation("clamped_swiglu", interleaved=True)

    def leaves(dtype):
        return [v.cuda().to(dtype, copy=True).requires_grad_() for v in values.values()]

    mine, expected = leaves(torch.bfloat16), leaves(torch.float32)
    ids = ids.cuda()
    y = train_layer(mine[0], ids, *mine[1:], precision=precision, activation=activation)
    y.backward(upstream)
    moe_reference(expected[0], ids, *expected[1:], activation=activation).backward(upstream.float())
    recipe = TRAIN_RECIPES[precision]
    formats = [FORMATS[f].tolerance for f in (recipe.weights, recipe.activations, recipe.gradients)]
    limit = 2 * sum(4 * t * t for t in formats) ** 0.5 + 8 * 2**-8
    for got, want in zip(mine, expected, strict=True):
        assert rms(got.grad, want.grad) <= limit


def test_rows_and_gradients_beyond_32_bits():
    num_rows, n_size, k_size = 270_000, 8192, 64
    assert num_rows * n_size > 2**31
    grads = torch.zeros(num_rows, n_size, dtype=torch.bfloat16, device="cuda")
    grads[-3:] = torch.randn(3, n_size, device="cuda")
    rows = torch.randn(num_rows, k_size, device="cuda").bfloat16()
    offsets = torch.tensor([0, num_rows - 3, num_rows], device="cuda")
    out = grouped_wgrad(grads, rows, offsets, grads_format="bf16", rows_format="bf16")
    assert not out[0].any()
    assert rms(out[1], grads[-3:].float().T @ rows[-3:].float()) <= FLOAT32_SUMS
    w = FORMATS["bf16"].encode(torch.randn(2, k_size, n_size, device="cuda"))
    dx = grouped_dgrad(grads, offsets, w, grads_format="bf16")
    assert rms(dx[-3:], grads[-3:].float() @ w.data[1].float().T) <= FORMATS["bf16"].tolerance


@pytest.mark.parametrize("formats", [("bf16", "bf16"), ("e5m2_block", "e4m3_block")], ids=str)
def test_backward_products_never_wait_for_the_device(formats):
    """A CUDA graph holds them, and a replay follows new offsets and new rows."""
    need(formats)
    grads, rows, offsets, generator = (t.cuda() if isinstance(t, torch.Tensor) else t
                                       for t in operands([60, 0, 40], 128, 256, 0))  # fmt: skip
    w = FORMATS[formats[1]].encode(torch.randn(3, 256, 128, generator=generator), weights=True).to("cuda")

    def step():
        encoded = grads if formats[0] == "bf16" else FORMATS[formats[0]].encode(grads)
        return (
            grouped_wgrad(grads, rows, offsets, grads_format=formats[0], rows_format=formats[1]),
            grouped_dgrad(encoded, offsets, w, grads_format=formats[0]),
        )

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    offsets.copy_(torch.tensor([0, 10, 75, 100], device="cuda"))
    rows.mul_(2)
    graph.replay()
    for got, want in zip(captured, step(), strict=True):
        assert torch.equal(got, want)


def test_fp8_sums_err_as_those_of_cublas_without_fast_accumulation():
    """The deviation is the matrix unit's: cuBLAS, which adds products of 128 in float32 too, shows the same."""
    formats = ("e4m3_tensor", "e4m3_tensor")
    need(formats)
    generator = torch.Generator().manual_seed(0)
    grads, rows = (torch.randn(512, n, generator=generator).bfloat16() for n in (512, 768))
    offsets = torch.tensor([0, 512])
    how = {"grads_format": formats[0], "rows_format": formats[1]}
    ours = grouped_wgrad(grads.cuda(), rows.cuda(), offsets.cuda(), **how)
    g, x = (FORMATS["e4m3_tensor"].encode(part) for part in (grads, rows))
    a_NT = g.data.view(torch.float8_e4m3fn).cuda().T.contiguous()
    b_TK = x.data.view(torch.float8_e4m3fn).cuda().T.contiguous().T
    one = torch.ones((), device="cuda")
    theirs = torch._scaled_mm(a_NT, b_TK, one, one, out_dtype=torch.float32, use_fast_accum=False)
    their_error = rms(theirs, a_NT.double() @ b_TK.double())
    assert rms(ours, grouped_wgrad(grads, rows, offsets, backend="torch", **how)) <= 1.1 * their_error
