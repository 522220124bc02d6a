"""The fused router kernel: scores, bias, groups, exact top-k, weights, in one pass over the logits.

Torch twin: ``kernels.routing.rules`` (``select`` and ``weigh``). T tokens, E experts, K top-k.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from kernels.routing.rules import ScoreRule

LANES_A_PROGRAM = 512  # of one warp, so that no reduction crosses warps


@triton.jit
def _exp(x, plain: tl.constexpr):
    """``plain`` is for the interpreter; on a GPU the function that torch uses, so that both select alike."""
    if plain:
        return tl.exp(x)
    else:
        return libdevice.exp(x)


@triton.jit
def _ordered(scores, index):
    """int64 keys that order as (score, then lower index first); all above -2^63 + 1."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    high = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (high.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def _sigmoid(x, plain: tl.constexpr):
    below = 1.0 + _exp(-x, plain)
    return tl.math.div_rn(tl.full(below.shape, 1.0, tl.float32), below)


@triton.jit
def _softmax(x, plain: tl.constexpr):
    """Over the lanes of a row; 0 throughout where all are -inf."""
    largest = tl.max(x, 1)
    raised = _exp(x - tl.where(largest == float("-inf"), 0.0, largest)[:, None], plain)
    total = tl.sum(raised, 1)
    total = tl.where(total > 0.0, total, 1.0)[:, None]
    return tl.math.div_rn(raised, tl.broadcast_to(total, x.shape))


@triton.jit
def _in_best_groups(
    choice,
    real,
    num_groups: tl.constexpr,
    topk_group: tl.constexpr,
    two_best: tl.constexpr,
    padded_groups: tl.constexpr,
    padded_size: tl.constexpr,
    block_rows: tl.constexpr,
):
    """int32 [rows, lanes]: 1 for the lanes of the groups kept."""
    choice = tl.where(real, choice, float("-inf"))
    grouped = tl.reshape(choice, (block_rows, padded_groups, padded_size))
    group_scores = tl.max(grouped, 2)
    if two_best:
        place = tl.arange(0, padded_size)[None, None, :]
        first = tl.min(tl.where(grouped == group_scores[:, :, None], place, padded_size), 2)
        group_scores += tl.max(tl.where(place == first[:, :, None], float("-inf"), grouped), 2)
    group = tl.arange(0, padded_groups)[None, :]
    keys = tl.where(group < num_groups, _ordered(group_scores, group), -0x7FFFFFFFFFFFFFFF)
    kept = tl.zeros((block_rows, padded_groups), tl.int32)
    for _ in range(topk_group):
        hit = keys == tl.max(keys, 1)[:, None]
        kept = tl.where(hit, 1, kept)
        keys = tl.where(hit, -0x7FFFFFFFFFFFFFFF, keys)
    spread = tl.broadcast_to(kept[:, :, None], (block_rows, padded_groups, padded_size))
    return tl.reshape(spread, (block_rows, padded_groups * padded_size))


@triton.jit(do_not_specialize=["num_rows"])
def router_kernel(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    weights_ptr,
    num_rows,
    stride_t,
    routed_scaling,
    num_experts: tl.constexpr,
    top_k: tl.constexpr,
    select_by: tl.constexpr,
    weigh_by: tl.constexpr,
    norm_topk: tl.constexpr,
    num_groups: tl.constexpr,
    topk_group: tl.constexpr,
    padded_groups: tl.constexpr,
    padded_size: tl.constexpr,
    block_rows: tl.constexpr,
    plain: tl.constexpr,
):
    """ids int32 [T, K] and weights float32 [T, K] from logits [T, E]; ``bias_ptr`` may be None.

    Example: the logits [1, 3, 3, 0] with K = 2, softmax over the selected, give the ids [1, 2] and weights 0.5, 0.5.
    A lane is an expert; groups are padded apart so that each fills a power of two.
    """
    group_size: tl.constexpr = num_experts // num_groups
    no_key: tl.constexpr = -0x7FFFFFFFFFFFFFFF
    rows = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    lane = tl.arange(0, padded_groups * padded_size)
    expert = (lane // padded_size) * group_size + lane % padded_size
    inside = (lane % padded_size < group_size) & (lane // padded_size < num_groups)
    real = inside[None, :]
    present = (rows < num_rows)[:, None]
    x = tl.load(logits_ptr + rows[:, None] * stride_t + expert[None, :], mask=present & real, other=float("-inf"))
    x = x.to(tl.float32)
    x = tl.where(x == x, tl.minimum(x, 3.4028234663852886e38), float("-inf"))

    if select_by == "sigmoid":
        choice = _sigmoid(x, plain)
    elif select_by == "softmax":
        choice = _softmax(x, plain)
    else:
        choice = x
    if bias_ptr is not None:
        choice += tl.load(bias_ptr + expert, mask=inside, other=0.0).to(tl.float32)[None, :]

    keys = tl.where(real, _ordered(choice, tl.broadcast_to(expert[None, :], x.shape)), no_key)
    if topk_group < num_groups:
        kept = _in_best_groups(
            choice,
            real,
            num_groups,
            topk_group,
            select_by == "sigmoid" and group_size > 1,
            padded_groups,
            padded_size,
            block_rows,
        )
        keys = tl.where(kept == 1, keys, no_key)

    # A lane remembers at which place it was chosen, so that nothing is gathered across lanes but the maximum.
    place = tl.full(keys.shape, -1, tl.int32)
    for k in range(top_k):
        hit = keys == tl.max(keys, 1)[:, None]
        place = tl.where(hit, k, place)
        keys = tl.where(hit, no_key, keys)
    picked = place >= 0

    if weigh_by == "sigmoid":
        weights = _sigmoid(x, plain)
    elif weigh_by == "softmax":
        weights = _softmax(x, plain)
    else:
        weights = _softmax(tl.where(picked, x, float("-inf")), plain)
    if norm_topk:
        below = tl.maximum(tl.sum(tl.where(picked, weights, 0.0), 1), 1.1754943508222875e-38)[:, None]
        weights = tl.math.div_rn(weights, tl.broadcast_to(below, x.shape))
    out = rows[:, None] * top_k + place
    tl.store(ids_ptr + out, tl.broadcast_to(expert[None, :], x.shape), mask=present & picked)
    tl.store(weights_ptr + out, weights * routed_scaling, mask=present & picked)


def launch_constants(rule: ScoreRule, *, num_experts: int, top_k: int) -> dict[str, object]:
    """Constants of ``router_kernel`` for a rule, all but ``plain``."""
    padded_groups = triton.next_power_of_2(rule.num_groups)
    padded_size = triton.next_power_of_2(num_experts // rule.num_groups)
    lanes = padded_groups * padded_size
    return {
        "num_experts": num_experts,
        "top_k": top_k,
        "select_by": rule.select_by,
        "weigh_by": rule.weigh_by,
        "norm_topk": rule.norm_topk and rule.weigh_by != "selected",
        "num_groups": rule.num_groups,
        "topk_group": rule.topk_group,
        "padded_groups": padded_groups,
        "padded_size": padded_size,
        "block_rows": max(1, min(8, LANES_A_PROGRAM // lanes)),
    }


def fused_route(rule: ScoreRule, logits_TE: Tensor, *, top_k: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """ids int32 [T, K], weights float32 [T, K]. Nothing waits for the device."""
    num_rows, num_experts = logits_TE.shape
    if logits_TE.stride(1) != 1:
        logits_TE = logits_TE.contiguous()
    ids = torch.empty(num_rows, top_k, dtype=torch.int32, device=logits_TE.device)
    weights = torch.empty(num_rows, top_k, dtype=torch.float32, device=logits_TE.device)
    if num_rows:
        constants = launch_constants(rule, num_experts=num_experts, top_k=top_k)
        with torch.cuda.device_of(logits_TE):
            router_kernel[(triton.cdiv(num_rows, constants["block_rows"]),)](
                logits_TE,
                None if bias is None else bias.contiguous(),
                ids,
                weights,
                num_rows,
                logits_TE.stride(0),
                float(rule.routed_scaling),
                **constants,
                plain=not isinstance(router_kernel, triton.JITFunction),
                num_warps=1,
            )
    return ids, weights
