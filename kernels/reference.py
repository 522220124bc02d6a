"""The layer as its definition says: float32 in plain torch, one expert after the other. Every gate compares to it.

T tokens, E experts, K top-k, H hidden, I intermediate.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.activation import Activation, apply_activation


def expert_reference(
    x_MH: Tensor,
    w13_2IH: Tensor,
    w2_HI: Tensor,
    *,
    bias13: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: Activation,
) -> Tensor:
    """One expert on its rows, float32 [M, H]."""
    h_M2I = x_MH.float() @ w13_2IH.float().T
    if bias13 is not None:
        h_M2I = h_M2I + bias13.float()
    y_MH = apply_activation(h_M2I, activation, backend="torch") @ w2_HI.float().T
    return y_MH if bias2 is None else y_MH + bias2.float()


def moe_reference(
    x_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    w13: Tensor | Sequence[Tensor],
    w2: Tensor | Sequence[Tensor],
    *,
    bias13: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: Activation | None = None,
    weight_on: str = "output",
    shared_w13: Tensor | None = None,
    shared_w2: Tensor | None = None,
) -> Tensor:
    """Float32 [T, H]: every token's experts, weighted and summed, plus the shared expert ([2S, H] and [H, S]) if given.

    ``w13`` [E, 2I, H] and ``w2`` [E, H, I], or one tensor an expert. Ids of -1 add nothing. ``weight_on``: ``output``,
    or ``input``, where the weight multiplies the token before its expert (Llama-4).
    """
    activation = activation or Activation()
    y_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
    for e in range(len(w13)):
        tokens, slots = torch.where(ids_TK == e)
        if not tokens.numel():
            continue
        x_MH, scale_M1 = x_TH[tokens].float(), weights_TK[tokens, slots].float()[:, None]
        out_MH = expert_reference(
            x_MH * scale_M1 if weight_on == "input" else x_MH,
            w13[e],
            w2[e],
            bias13=None if bias13 is None else bias13[e],
            bias2=None if bias2 is None else bias2[e],
            activation=activation,
        )
        y_TH.index_add_(0, tokens, out_MH if weight_on == "input" else out_MH * scale_M1)
    if shared_w13 is not None and shared_w2 is not None:
        shared_w13, shared_w2 = (w.reshape(w.shape[-2:]) for w in (shared_w13, shared_w2))
        y_TH += expert_reference(x_TH, shared_w13, shared_w2, activation=activation)
    return y_TH
