"""The tensors that a stack of experts is stored in, each with a row an expert."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kernels.formats import Quantised
from kernels.moe import ExpertWeights


def parts_of(experts: ExpertWeights) -> list[Tensor]:
    """Codes, scales and biases [E, ...] in a fixed order."""
    stacks = [part for w in (experts.w13, experts.w2) for part in (w.data, w.scale, w.global_scale)]
    return [part for part in (*stacks, experts.bias13, experts.bias2) if part is not None]


def map_parts(experts: ExpertWeights, change: Callable[[Tensor], Tensor]) -> ExpertWeights:
    """Experts whose every part is ``change`` of the old one; all must come out with equally many rows."""

    def weights(old: Quantised) -> Quantised:
        data, scale, global_scale = (
            None if part is None else change(part) for part in (old.data, old.scale, old.global_scale)
        )
        return replace(old, shape=(len(data), *old.shape[1:]), data=data, scale=scale, global_scale=global_scale)

    bias13, bias2 = (None if bias is None else change(bias) for bias in (experts.bias13, experts.bias2))
    return ExpertWeights(
        weights(experts.w13), weights(experts.w2), bias13, bias2, experts.activation, experts.precision
    )


def join_parts(stacks: list[ExpertWeights], *, pinned: bool) -> ExpertWeights:
    """Stacks of experts one after the other in host memory; ``pinned`` locks its pages for copies beside work."""
    rows = [part.shape[0] for part in (parts_of(stack)[0] for stack in stacks)]
    joined = map_parts(
        stacks[0], lambda part: torch.empty((sum(rows), *part.shape[1:]), dtype=part.dtype, pin_memory=pinned)
    )
    start = 0
    for stack, count in zip(stacks, rows, strict=True):
        for target, source in zip(parts_of(joined), parts_of(stack), strict=True):
            target[start : start + count].copy_(source)
        start += count
    return joined
