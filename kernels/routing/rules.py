"""Routers that score every expert, select K of them and weigh those: one rule, run by torch or by the fused kernel.

T tokens, E experts, K top-k. The torch path works on any device without waiting for it, and its weights carry
gradients; the kernel (``triton_router``) does the same in one pass where it covers the case.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.backend import row_backend_on
from kernels.routing.base import (
    Routing,
    check_groups,
    check_logits,
    even_sigmoid,
    finish_weights,
    finite_logits,
    route_rows,
    softmax_or_zero,
)
from kernels.routing.select import top_k_in_groups

MAX_FUSED_EXPERTS = 512
MAX_FUSED_TOP_K = 64
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class ScoreRule:
    """What selects and what weighs.

    ``select_by`` plus the bias orders the experts, inside the ``topk_group`` best of ``num_groups`` equal groups of
    neighbours; a group's score is the sum of its two largest for sigmoid, its largest otherwise. Weights are the
    softmax over the selected logits alone, or the sigmoid or softmax score, normalised if ``norm_topk``; all times
    ``routed_scaling``.
    """

    select_by: Literal["logits", "sigmoid", "softmax"]
    weigh_by: Literal["selected", "sigmoid", "softmax"]
    norm_topk: bool = False
    routed_scaling: float = 1.0
    num_groups: int = 1
    topk_group: int = 1


def route_by(
    rule: ScoreRule, logits_TE: Tensor, *, top_k: int, bias: Tensor | None = None, backend: str = "auto"
) -> Routing:
    """Route by the rule. ``auto`` takes the fused kernel on a GPU for all that it covers, torch otherwise.

    Raises ValueError for arguments that do not fit, and for ``triton`` where the kernel cannot run.
    """
    check_logits(logits_TE, top_k=top_k, bias=bias)
    check_groups(logits_TE.shape[1], top_k=top_k, num_groups=rule.num_groups, topk_group=rule.topk_group)
    if _backend(logits_TE, top_k=top_k, backend=backend) == "torch":
        return route_rows(logits_TE, lambda logits: _route(rule, logits, top_k=top_k, bias=bias))
    run = _Fused.apply if logits_TE.requires_grad and torch.is_grad_enabled() else _fused
    return Routing(*run(logits_TE, bias, rule, top_k))


def select(rule: ScoreRule, logits: Tensor, *, top_k: int, bias: Tensor | None) -> Tensor:
    """int64 ids [rows, K] for clean logits [rows, E]."""
    choice = {"logits": _as_is, "sigmoid": even_sigmoid, "softmax": softmax_or_zero}[rule.select_by](logits.detach())
    if bias is not None:
        choice = choice + bias.detach()
    best = _two_largest_sum if rule.select_by == "sigmoid" else _largest
    return top_k_in_groups(choice, best, num_groups=rule.num_groups, topk_group=rule.topk_group, k=top_k)


def weigh(rule: ScoreRule, logits: Tensor, ids: Tensor) -> Tensor:
    """Weights [rows, K] of the selected ``ids`` (int64) of clean logits [rows, E]; differentiable."""
    if rule.weigh_by == "selected":
        return softmax_or_zero(logits.gather(1, ids)) * rule.routed_scaling
    if rule.weigh_by == "sigmoid":
        scores = even_sigmoid(logits.gather(1, ids))
    else:
        scores = softmax_or_zero(logits).gather(1, ids)
    return finish_weights(scores, norm_topk=rule.norm_topk, routed_scaling=rule.routed_scaling)


def _route(rule: ScoreRule, logits: Tensor, *, top_k: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    ids = select(rule, logits, top_k=top_k, bias=bias)
    return ids, weigh(rule, logits, ids)


def _backend(logits_TE: Tensor, *, top_k: int, backend: str) -> str:
    chosen = row_backend_on(logits_TE.device, backend)
    covered = logits_TE.shape[1] <= MAX_FUSED_EXPERTS and top_k <= MAX_FUSED_TOP_K and logits_TE.dtype in FUSED_DTYPES
    if chosen == "triton" and not covered:
        if backend == "triton":
            raise ValueError(
                f"backend: the fused router takes {MAX_FUSED_EXPERTS} experts, top_k {MAX_FUSED_TOP_K} and floats of"
                f" up to 32 bits, got {logits_TE.shape[1]} experts, top_k {top_k}, {logits_TE.dtype}; use torch"
            )
        return "torch"
    return chosen


def _fused(logits_TE: Tensor, bias: Tensor | None, rule: ScoreRule, top_k: int) -> tuple[Tensor, Tensor]:
    from kernels.routing.triton_router import fused_route

    return fused_route(rule, logits_TE, top_k=top_k, bias=bias)


class _Fused(torch.autograd.Function):
    """The kernel forwards; the gradient is that of ``weigh`` at the ids it selected."""

    @staticmethod
    def forward(ctx, logits_TE: Tensor, bias: Tensor | None, rule: ScoreRule, top_k: int) -> tuple[Tensor, Tensor]:
        ids, weights = _fused(logits_TE, bias, rule, top_k)
        ctx.rule = rule
        ctx.save_for_backward(logits_TE, ids)
        ctx.mark_non_differentiable(ids)
        return ids, weights

    @staticmethod
    def backward(ctx, _, grad_TK: Tensor) -> tuple[Tensor | None, ...]:
        logits_TE, ids = ctx.saved_tensors
        with torch.enable_grad():
            leaf = logits_TE.detach().requires_grad_()
            weights = weigh(ctx.rule, finite_logits(leaf), ids.long())
        return torch.autograd.grad(weights, leaf, grad_TK)[0], None, None, None


def _as_is(logits: Tensor) -> Tensor:
    return logits


def _largest(grouped: Tensor) -> Tensor:
    return grouped.amax(-1)


def _two_largest_sum(grouped: Tensor) -> Tensor:
    """[rows, G, S] -> [rows, G]; the largest alone when S is 1.

    On a CPU halves meet as in a tournament that also keeps the best loser: three times faster than a top-k there.
    """
    size = grouped.shape[-1]
    if size == 1 or grouped.device.type != "cpu":
        return grouped.topk(min(2, size)).values.sum(-1)
    largest = F.pad(grouped, (0, (1 << (size - 1).bit_length()) - size), value=-torch.inf)
    second = None
    while largest.shape[-1] > 1:
        left, right = largest.chunk(2, -1)
        loser = torch.minimum(left, right)
        second = loser if second is None else torch.maximum(loser, torch.maximum(*second.chunk(2, -1)))
        largest = torch.maximum(left, right)
    return (largest + second).squeeze(-1)
