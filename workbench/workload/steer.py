"""What balancing during training makes of a router: numbers per expert that shift what it chooses. E experts."""

from dataclasses import dataclass

STEERED = ("softmax_topk", "topk_softmax", "sigmoid_topk", "sigmoid_group", "softmax_group")
"""Routers that a bias or a shift of the logits can steer."""


@dataclass(frozen=True)
class Steer:
    """``bias`` [E] is added to the scores that select, never to the weights (the correction bias of DeepSeek-V3);
    ``shift`` [E] to the logits (a bias of the gate itself). An empty one adds nothing."""

    bias: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
