"""The gated activations: layout, clamp and exact numbers."""

import pytest
import torch

from kernels.activation import Activation, apply_activation

PAIRS = torch.tensor([[1.0, 2.0, 10.0, 1.0, 1.0, -10.0, 3.0, -1.0]])
GPT_OSS = Activation(kind="clamped_swiglu", alpha=1.702, limit=7.0, interleaved=True)


def test_c12_gpt_oss_activation_is_interleaved():
    out = apply_activation(PAIRS, GPT_OSS)
    torch.testing.assert_close(out, torch.tensor([[2.537387, 13.999906, -5.074775, 0.0]]), rtol=0, atol=2e-6)
    halves = apply_activation(PAIRS, Activation(kind="clamped_swiglu"))
    assert not torch.allclose(out, halves)


def test_gate_is_clamped_above_only():
    gate, up = torch.tensor([[-20.0, 20.0]]), torch.tensor([[1.0, 1.0]])
    out = apply_activation(torch.cat([gate, up], dim=1), Activation(kind="clamped_swiglu", alpha=0.1))
    expected = 2 * torch.tensor([[-20.0, 7.0]]) * torch.sigmoid(0.1 * torch.tensor([[-20.0, 7.0]]))
    torch.testing.assert_close(out, expected)


def test_swiglu_of_both_layouts():
    gate, up = torch.randn(3, 5), torch.randn(3, 5)
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(apply_activation(torch.cat([gate, up], 1), Activation()), expected)
    woven = torch.stack([gate, up], dim=-1).reshape(3, 10)
    torch.testing.assert_close(apply_activation(woven, Activation(interleaved=True)), expected)


def test_activation_keeps_dtype_and_empty_rows():
    assert apply_activation(torch.ones(2, 4).bfloat16(), Activation()).dtype == torch.bfloat16
    assert apply_activation(torch.empty(0, 4), GPT_OSS).shape == (0, 2)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="gelu"):
        Activation(kind="gelu")
    with pytest.raises(ValueError, match="3 columns"):
        apply_activation(torch.ones(1, 3), Activation())
