"""The torch grouped GEMM against a loop over experts, for every format, and what it refuses."""

import gc

import pytest
import torch

from kernels.formats import FORMATS
from kernels.grouped_gemm import grouped_gemm, quantise_rows
from kernels.recipes import RECIPES


def offsets_of(counts):
    return torch.tensor([0, *counts]).cumsum(0)


def rms(value, expected):
    return float((value.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-30))


def loop_over_experts(rows, counts, weights, activations_format, bias=None):
    """Decoded, float32, an expert at a time: the definition."""
    weights_ENK = FORMATS[weights.format].decode(weights)
    encoded = quantise_rows(rows, activations_format, weights=weights)
    rows = rows.float() if isinstance(encoded, torch.Tensor) else FORMATS[activations_format].decode(encoded)
    parts = [part @ w_NK.T for part, w_NK in zip(rows.split(counts), weights_ENK, strict=True)]
    if bias is not None:
        parts = [part + b_N.float() for part, b_N in zip(parts, bias, strict=True)]
    return torch.cat(parts)


@pytest.mark.parametrize("precision", RECIPES)
def test_every_recipe_equals_a_loop_over_experts(precision):
    recipe, counts = RECIPES[precision], [3, 0, 17, 1]
    rows = torch.randn(21, 160).bfloat16()
    weights = FORMATS[recipe.weights].encode(torch.randn(4, 72, 160), weights=True)
    bias = torch.randn(4, 72).bfloat16()
    out = grouped_gemm(rows, offsets_of(counts), weights, activations_format=recipe.activations, bias_EN=bias)
    expected = loop_over_experts(rows, counts, weights, recipe.activations, bias)
    assert out.dtype == torch.bfloat16
    # Beside BF16 rows the decoded weights are rounded to BF16, and so is the result.
    assert rms(out, expected) <= 2 * FORMATS["bf16"].tolerance
    assert rms(out, expected.roll(1, 0)) > 0.5


def test_c03_experts_without_tokens_leave_nothing_unwritten():
    counts = [162, 0, 2577, 446, 0, 83]
    weights = FORMATS["bf16"].encode(torch.randn(6, 24, 32), weights=True)
    busy = [545, 545, 545, 545, 544, 544]
    rows = torch.randn(sum(counts), 32).bfloat16()
    poison = grouped_gemm(rows * float("inf"), offsets_of(busy), weights, activations_format="bf16")
    assert not poison.isfinite().all()
    del poison
    gc.collect()
    out = grouped_gemm(rows, offsets_of(counts), weights, activations_format="bf16")
    assert out.isfinite().all()
    assert rms(out, loop_over_experts(rows, counts, weights, "bf16")) <= FORMATS["bf16"].tolerance


@pytest.mark.parametrize("num_experts", [5, 60, 96, 160])
def test_c10_expert_counts_that_are_no_power_of_two(num_experts):
    generator = torch.Generator().manual_seed(num_experts)
    counts = torch.randint(0, 5, (num_experts,), generator=generator).tolist()
    rows = torch.randn(sum(counts), 16, generator=generator).bfloat16()
    weights = FORMATS["mxfp4"].encode(torch.randn(num_experts, 8, 16, generator=generator), weights=True)
    out = grouped_gemm(rows, offsets_of(counts), weights, activations_format="bf16")
    assert rms(out, loop_over_experts(rows, counts, weights, "bf16")) <= FORMATS["bf16"].tolerance


def test_rows_past_the_last_offset_are_zero():
    weights = FORMATS["e4m3_block"].encode(torch.randn(2, 8, 16), weights=True)
    out = grouped_gemm(torch.randn(9, 16).bfloat16(), torch.tensor([0, 2, 5]), weights, activations_format="e4m3_block")
    assert out[:5].abs().sum() > 0
    assert out[5:].abs().sum() == 0


def test_decoding_in_parts_changes_nothing(monkeypatch):
    weights = FORMATS["nvfp4"].encode(torch.randn(7, 8, 32), weights=True)
    rows, offsets = torch.randn(12, 32).bfloat16(), offsets_of([2, 0, 3, 1, 0, 5, 1])
    whole = grouped_gemm(rows, offsets, weights, activations_format="bf16")
    monkeypatch.setattr("kernels.grouped_gemm.torch_gemm.MAX_DECODED_ELEMENTS", 2 * 8 * 32)
    assert torch.equal(whole, grouped_gemm(rows, offsets, weights, activations_format="bf16"))


def test_rows_encoded_beforehand_give_the_same():
    weights = FORMATS["mxfp4"].encode(torch.randn(2, 8, 64), weights=True, scale_rule="even")
    rows, offsets = torch.randn(5, 64).bfloat16(), torch.tensor([0, 2, 5])
    encoded = quantise_rows(rows, "mxfp8", weights=weights)
    assert encoded.scale_rule == "even"
    first = grouped_gemm(encoded, offsets, weights, activations_format="mxfp8")
    assert torch.equal(first, grouped_gemm(rows, offsets, weights, activations_format="mxfp8"))


def test_what_does_not_fit_is_refused():
    weights = FORMATS["bf16"].encode(torch.randn(2, 8, 16), weights=True)
    rows, offsets = torch.randn(5, 16).bfloat16(), torch.tensor([0, 2, 5])
    with pytest.raises(ValueError, match=r"rows: shape \(5, 15\)"):
        grouped_gemm(rows[:, :15], offsets, weights, activations_format="bf16")
    with pytest.raises(ValueError, match=r"want \[3\]"):
        grouped_gemm(rows, offsets[1:], weights, activations_format="bf16")
    with pytest.raises(ValueError, match="bias_EN"):
        grouped_gemm(rows, offsets, weights, activations_format="bf16", bias_EN=torch.zeros(2, 7))
    with pytest.raises(ValueError, match="known: bf16"):
        grouped_gemm(rows, offsets, weights, activations_format="int3")
    with pytest.raises(ValueError, match="backend: 'cuda' is unknown"):
        grouped_gemm(rows, offsets, weights, activations_format="bf16", backend="cuda")
    with pytest.raises(ValueError, match="no kernel for bf16 x mxfp8"):
        grouped_gemm(rows, offsets, weights, activations_format="mxfp8", backend="triton")
