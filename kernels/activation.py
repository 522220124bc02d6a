"""The gated activations between the two expert GEMMs, in float32 whatever the input.

M rows, I expert width; the input holds gate and up, [M, 2I].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.backend import row_backend_on

KINDS = ("swiglu", "clamped_swiglu")


@dataclass(frozen=True)
class Activation:
    """``swiglu``: silu(gate) * up. ``clamped_swiglu``: (up + 1) * gate * sigmoid(alpha * gate), gate at most ``limit``
    and up within +-``limit`` (gpt-oss). ``interleaved``: columns alternate gate, up; otherwise gates come first.
    """

    kind: str = "swiglu"
    alpha: float = 1.702
    limit: float = 7.0
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"activation: {self.kind!r} is unknown; known: {', '.join(KINDS)}")


def split_gate_up(h_M2I: Tensor, *, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the gate and the up columns, [M, I] each."""
    if h_M2I.shape[-1] % 2:
        raise ValueError(f"activation: {h_M2I.shape[-1]} columns do not split into gate and up")
    if interleaved:
        return h_M2I[..., 0::2], h_M2I[..., 1::2]
    gate, up = h_M2I.chunk(2, dim=-1)
    return gate, up


def apply_activation(h_M2I: Tensor, activation: Activation, *, backend: str = "auto") -> Tensor:
    """Activated rows [M, I] in the dtype of the input.

    gpt-oss, limit 7, pairs (1, 2) (10, 1) (1, -10) (3, -1): 2.537387, 13.999906, -5.074775, 0.
    """
    gate, up = split_gate_up(h_M2I, interleaved=activation.interleaved)
    if row_backend_on(h_M2I.device, backend) == "triton":
        from kernels.triton_rows import triton_activation

        return triton_activation(
            h_M2I,
            kind=activation.kind,
            alpha=activation.alpha,
            limit=activation.limit,
            interleaved=activation.interleaved,
        )
    gate, up = gate.float(), up.float()
    if activation.kind == "clamped_swiglu":
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(min=-activation.limit, max=activation.limit)
        out = (up + 1) * (gate * torch.sigmoid(activation.alpha * gate))
    else:
        out = torch.nn.functional.silu(gate) * up
    return out.to(h_M2I.dtype)
