"""Gradients of the gated activations, in float32 whatever the input (float64 stays float64).

M rows, I expert width; columns of gate and up as in ``kernels.activation``.
"""

import torch
from torch import Tensor

from kernels.activation import Activation, apply_activation, split_gate_up


def activate(h_M2I: Tensor, activation: Activation, *, backend: str = "auto") -> Tensor:
    """``apply_activation``, in float64 too, where it keeps that precision."""
    if h_M2I.dtype != torch.float64:
        return apply_activation(h_M2I, activation, backend=backend)
    gate, up = split_gate_up(h_M2I, interleaved=activation.interleaved)
    if activation.kind == "clamped_swiglu":
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
        return (up + 1) * (gate * torch.sigmoid(activation.alpha * gate))
    return torch.nn.functional.silu(gate) * up


def activation_backward(grads_MI: Tensor, h_M2I: Tensor, activation: Activation) -> Tensor:
    """Gradients [M, 2I] of gate and up in the dtype of ``h_M2I``, laid out like it.

    With s = sigmoid(a g): d/dg [g s] = s + a g s (1 - s), with a = 1 for swiglu. Where clamped_swiglu clamps, nothing
    flows back; at the limit itself it does, as in torch.clamp. gpt-oss, gradient 1: (1, 2) gives (3.2033, 0.8458),
    (10, 1) gives (0, 6.99995).
    """
    wide = torch.promote_types(h_M2I.dtype, torch.float32)
    gate, up = (part.to(wide) for part in split_gate_up(h_M2I, interleaved=activation.interleaved))
    grads_MI = grads_MI.to(wide)
    if activation.kind == "clamped_swiglu":
        inside_gate, inside_up = gate <= activation.limit, up.abs() <= activation.limit
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
        d_gate, d_up = _gated(grads_MI, gate, up + 1, activation.alpha)
        d_gate, d_up = d_gate * inside_gate, d_up * inside_up
    else:
        d_gate, d_up = _gated(grads_MI, gate, up, 1.0)
    if activation.interleaved:
        return torch.stack((d_gate, d_up), dim=-1).flatten(-2).to(h_M2I.dtype)
    return torch.cat((d_gate, d_up), dim=-1).to(h_M2I.dtype)


def _gated(grads: Tensor, gate: Tensor, factor: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Gradients of ``gate * sigmoid(alpha * gate) * factor`` by gate and by factor."""
    sigmoid = torch.sigmoid(alpha * gate)
    gated = gate * sigmoid
    return grads * factor * (sigmoid + alpha * gated * (1 - sigmoid)), grads * gated
