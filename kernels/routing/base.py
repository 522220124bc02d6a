"""What every router shares: the result, the checks, the treatment of bad logits, and row-wise execution.

T tokens, E experts, K top-k. A router is a function ``route(logits_TE, *, top_k, bias=None, <its options>)``.
``bias`` [E] shifts the scores that select experts and never enters the weights; a bias of the gate's own linear layer
(GPT-OSS) belongs in the logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

ROWS_A_PART = 4096
"""Rows a CPU part holds, so that temporaries stay in the cache and out of the page-fault path."""


@dataclass(frozen=True, eq=False)
class Routing:
    """``ids`` int32 [T, K] in descending score order, distinct in a row; -1 is a dropped pair. ``weights`` float32
    [T, K] (float64 for logits of that kind), 0 where dropped; they carry gradients to the logits."""

    ids: Tensor
    weights: Tensor


class Route(Protocol):
    """``backend`` is ``auto``, ``torch`` or ``triton``; routers without a kernel of their own run in torch whatever."""

    def __call__(self, logits_TE: Tensor, *, top_k: int, bias: Tensor | None = ..., backend: str = ...) -> Routing: ...


def check_logits(logits_TE: Tensor, *, top_k: int, bias: Tensor | None) -> None:
    """Raise ValueError, naming the argument, for what no router can take."""
    if logits_TE.dim() != 2:
        raise ValueError(f"logits must be [T, E], got shape {tuple(logits_TE.shape)}")
    num_experts = logits_TE.shape[1]
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k must lie in 1..num_experts, got top_k {top_k} and num_experts {num_experts}")
    if bias is not None and tuple(bias.shape) != (num_experts,):
        raise ValueError(f"bias must be [E] with E = {num_experts}, got shape {tuple(bias.shape)}")


def check_groups(num_experts: int, *, top_k: int, num_groups: int, topk_group: int) -> None:
    """Raise ValueError unless the groups divide the experts and the kept groups hold at least ``top_k`` of them."""
    if num_groups < 1 or num_experts % num_groups:
        raise ValueError(f"num_experts {num_experts} does not divide into num_groups {num_groups}")
    if not 1 <= topk_group <= num_groups:
        raise ValueError(f"topk_group must lie in 1..num_groups, got topk_group {topk_group}, num_groups {num_groups}")
    if top_k > topk_group * (num_experts // num_groups):
        raise ValueError(
            f"top_k {top_k} exceeds the {topk_group * (num_experts // num_groups)} experts of topk_group {topk_group}"
        )


def finite_logits(logits_TE: Tensor) -> Tensor:
    """float32 (or float64) logits where NaN is -inf (never preferred, weight 0) and +inf the largest float.

    A row of NaN alone thus selects experts 0..K-1, all with weight 0. No gradient flows to what was replaced.
    """
    logits_TE = logits_TE if logits_TE.dtype == torch.float64 else logits_TE.float()
    return logits_TE.nan_to_num(nan=-torch.inf, neginf=-torch.inf)


def is_dead(logits: Tensor) -> Tensor:
    """[rows, 1]: rows of -inf alone, such as those of a token whose logits are all NaN."""
    return (logits == -torch.inf).all(-1, keepdim=True)


def softmax_or_zero(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; a row of -inf alone gives zeros and not NaN, and zero gradients."""
    if not logits.requires_grad:
        return logits.softmax(-1).nan_to_num_(nan=0.0)
    dead = is_dead(logits)
    return logits.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


def even_sigmoid(logits: Tensor) -> Tensor:
    """Sigmoid that gives equal logits equal scores wherever they stand.

    torch.sigmoid on a CPU rounds the tail of a buffer differently from its body, which would break ties by position
    and make a token's result depend on its neighbours; exp does not.
    """
    return _EvenSigmoid.apply(logits) if logits.requires_grad else _even_sigmoid(logits)


def _even_sigmoid(logits: Tensor) -> Tensor:
    return logits.neg().exp_().add_(1.0).reciprocal_()


class _EvenSigmoid(torch.autograd.Function):
    """Its own derivative: that of exp alone would be 0 * inf for a logit of -inf."""

    @staticmethod
    def forward(ctx, logits: Tensor) -> Tensor:
        scores = _even_sigmoid(logits)
        ctx.save_for_backward(scores)
        return scores

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (scores,) = ctx.saved_tensors
        return grad * scores * (1.0 - scores)


def finish_weights(scores_TK: Tensor, *, norm_topk: bool, routed_scaling: float) -> Tensor:
    """Weights from the selected unbiased scores: normalised to sum 1 if asked, then scaled. All-zero rows stay 0."""
    if norm_topk:
        scores_TK = scores_TK / scores_TK.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return scores_TK * routed_scaling


def route_rows(logits_TE: Tensor, route: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Routing:
    """Apply ``route(clean logits) -> (ids int64, weights)``, which treats rows alone, part by part on a CPU."""
    step = ROWS_A_PART if logits_TE.device.type == "cpu" else max(1, logits_TE.shape[0])
    parts = [route(finite_logits(part)) for part in logits_TE.split(step)]
    ids, weights = parts[0] if len(parts) == 1 else (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return Routing(ids.to(torch.int32), weights)
