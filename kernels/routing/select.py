"""The one top-k of the project: exact, in descending order, ties to the lower index, the same on CPU and CUDA."""

from collections.abc import Callable

import torch
from torch import Tensor

_LOW_HALF = 0xFFFFFFFF


def top_k_ids(scores: Tensor, k: int) -> Tensor:
    """int64 ids [rows, k] of the k largest of ``scores`` [rows, E], NaN-free, compared as float32.

    torch.topk leaves the order of ties open. On a CPU it runs first, one place further than asked, and only rows
    with equal neighbours are selected again by unique keys; on CUDA keys are used for all rows, because looking for
    ties would wait for the device and could not be captured in a graph.

    >>> top_k_ids(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), 2)
    tensor([[1, 2]])
    """
    scores = scores.detach().float()
    if scores.device.type != "cpu":
        return _by_unique_keys(scores, k)
    values, ids = scores.topk(min(k + 1, scores.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(1)
    ids = ids[:, :k]
    if tied.any():
        ids[tied] = _by_unique_keys(scores[tied], k)
    return ids


def _by_unique_keys(scores: Tensor, k: int) -> Tensor:
    """Top-k of integers that order as (score, then lower index first), so no two are equal."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    index = torch.arange(scores.shape[1], device=scores.device)
    keys = (ordered.long() << 32) | (_LOW_HALF - index)
    return _LOW_HALF - (keys.topk(k).values & _LOW_HALF)


def top_k_in_groups(
    choice: Tensor, score_groups: Callable[[Tensor], Tensor], *, num_groups: int, topk_group: int, k: int
) -> Tensor:
    """int64 ids [rows, k] of the k largest of ``choice`` [rows, E] inside the ``topk_group`` best groups.

    ``score_groups`` turns [rows, G, E/G] into group scores [rows, G]. Experts outside are left out rather than
    masked with a value, so none can win however low the scores inside are.
    """
    if topk_group == num_groups:
        return top_k_ids(choice, k)
    grouped = choice.unflatten(1, (num_groups, -1))
    num_rows, _, group_size = grouped.shape
    groups = top_k_ids(score_groups(grouped), topk_group).sort(-1).values
    first_block = torch.arange(0, num_rows * num_groups, num_groups, device=choice.device)
    blocks = (groups + first_block.unsqueeze(1)).flatten()
    inside = grouped.reshape(-1, group_size).index_select(0, blocks).view(num_rows, topk_group * group_size)
    ids = top_k_ids(inside, k)
    return groups.gather(1, ids // group_size) * group_size + ids % group_size
