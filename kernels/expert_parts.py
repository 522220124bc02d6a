"""The tensors that a stack of experts is computed from, each with a row an expert.

Of experts with packed forms those are the packed ones; the plain codes are then left out, an empty tensor in their
place. E experts of the old stack, E' of the new.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from kernels.formats import Quantised
from kernels.grouped_gemm.packed import PackedWeights
from kernels.moe import ExpertWeights

Change = Callable[[Tensor], Tensor]
"""One part [E, ...] into the new stack's [E', ...]."""


def parts_of(experts: ExpertWeights) -> list[Tensor]:
    """Codes, scales and biases [E, ...] in a fixed order."""
    if experts.is_packed:
        packs = (experts.packed13, experts.packed2)
        stacks = [part for pack in packs if pack is not None for part in (pack.words, pack.scales, pack.column_scale)]
    else:
        stacks = [part for w in (experts.w13, experts.w2) for part in (w.data, w.scale, w.global_scale)]
    return [part for part in (*stacks, experts.bias13, experts.bias2) if part is not None]


def map_parts(experts: ExpertWeights, change: Change) -> ExpertWeights:
    """Experts whose every part is ``change`` of the old one; all must come out with equally many rows."""
    bias13, bias2 = (None if bias is None else change(bias) for bias in (experts.bias13, experts.bias2))
    packed13 = packed2 = None
    if experts.is_packed:
        w13, w2 = (_without_codes(w, change) for w in (experts.w13, experts.w2))
        packed13, packed2 = _map_packed(experts.packed13, w13, change), _map_packed(experts.packed2, w2, change)
    else:
        w13, w2 = (_map_quantised(w, change) for w in (experts.w13, experts.w2))
    return replace(experts, w13=w13, w2=w2, bias13=bias13, bias2=bias2, packed13=packed13, packed2=packed2)


def host_parts(stacks: Iterable[ExpertWeights], *, num_experts: int, pinned: bool) -> ExpertWeights:
    """Stacks of experts, ``num_experts`` in all, one after the other in host memory.

    ``pinned`` locks its pages, so that a GPU copies beside work, and packs what its kernels want packed, once, so that
    an expert is copied as it is multiplied. A stack is asked for when the last one is copied, so the device need not
    hold them all.
    """
    joined, start = None, 0
    for stack in stacks:
        stack = stack.packed() if pinned else stack
        if joined is None:
            joined = map_parts(stack, lambda part: _host_empty(part, num_experts, pinned=pinned))
        sources = parts_of(stack)
        for target, source in zip(parts_of(joined), sources, strict=True):
            target[start : start + len(source)].copy_(source)
        start += len(sources[0])
    if joined is None or start != num_experts:
        raise ValueError(f"stacks: they hold {start} experts, not {num_experts}")
    return joined


def _host_empty(part: Tensor, num_experts: int, *, pinned: bool) -> Tensor:
    return torch.empty((num_experts, *part.shape[1:]), dtype=part.dtype, pin_memory=pinned and part.numel() > 0)


def _map_quantised(old: Quantised, change: Change) -> Quantised:
    parts = (old.data, old.scale, old.global_scale)
    data, scale, global_scale = (None if part is None else change(part) for part in parts)
    return replace(old, shape=(len(data), *old.shape[1:]), data=data, scale=scale, global_scale=global_scale)


def _without_codes(old: Quantised, change: Change) -> Quantised:
    stub = change(old.data.flatten(1)[:, :0])
    return replace(old, shape=(len(stub), *old.shape[1:]), data=stub, scale=None, global_scale=None)


def _map_packed(old: PackedWeights | None, source: Quantised, change: Change) -> PackedWeights:
    assert old is not None
    words, scales, column_scale = (change(part) for part in (old.words, old.scales, old.column_scale))
    return replace(
        old,
        shape=(len(words), *old.shape[1:]),
        words=words,
        scales=scales,
        column_scale=column_scale,
        source=source.data,
    )
