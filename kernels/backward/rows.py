"""Tokens into expert order and back, and the gradients of both: each is the other's transpose.

T tokens, K top-k, H hidden, M rows in expert order.
"""

import torch
from torch import Tensor

from kernels.permute import Permutation, combine_rows


def sum_rows(
    rows_MH: Tensor, perm: Permutation, weights_TK: Tensor, *, out_dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:  # fmt: skip
    """Weighted sum [T, H] of every token's rows: ``combine_rows``, and in float64 for float64 rows."""
    if rows_MH.dtype != torch.float64:
        return combine_rows(rows_MH, perm, weights_TK, out_dtype=out_dtype, backend=backend)
    tokens_M = perm.order.div(weights_TK.shape[1], rounding_mode="floor")
    weighted = rows_MH * weights_TK.reshape(-1)[perm.order, None].double()
    return rows_MH.new_zeros(weights_TK.shape[0], rows_MH.shape[1]).index_add_(0, tokens_M, weighted)


def gather_backward(grads_MH: Tensor, perm: Permutation, *, shape: tuple[int, int], backend: str = "auto") -> Tensor:
    """[T, H], float32 at least: the gradients of a token's rows, summed; ``shape`` is (T, K)."""
    ones_TK = torch.ones(shape, device=grads_MH.device)
    wide = torch.promote_types(grads_MH.dtype, torch.float32)
    return sum_rows(grads_MH, perm, ones_TK, out_dtype=wide, backend=backend)


def combine_backward(grads_TH: Tensor, rows_MH: Tensor, perm: Permutation, weights_TK: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the rows [M, H] (in their dtype) and of the weights [T, K] (float32 at least).

    Row m of pair (t, k): weights[t, k] * grads[t]; its weight: grads[t] . rows[m]. Pairs without a row get 0.
    """
    top_k, wide = weights_TK.shape[1], torch.promote_types(rows_MH.dtype, torch.float32)
    grads_MH = grads_TH.index_select(0, perm.order.div(top_k, rounding_mode="floor")).to(wide)
    weight_M1 = weights_TK.reshape(-1)[perm.order, None].to(wide)
    return (grads_MH * weight_M1).to(rows_MH.dtype), _per_pair(grads_MH, rows_MH, perm, weights_TK)


def scale_backward(grads_MH: Tensor, rows_MH: Tensor, perm: Permutation, weights_TK: Tensor) -> tuple[Tensor, Tensor]:
    """The same for rows that their weight multiplies on the way in: ``rows_MH`` are those before it."""
    wide = torch.promote_types(rows_MH.dtype, torch.float32)
    weight_M1 = weights_TK.reshape(-1)[perm.order, None].to(wide)
    scaled_MH = (grads_MH.to(wide) * weight_M1).to(rows_MH.dtype)
    return scaled_MH, _per_pair(grads_MH.to(wide), rows_MH, perm, weights_TK)


def _per_pair(grads_MH: Tensor, rows_MH: Tensor, perm: Permutation, weights_TK: Tensor) -> Tensor:
    products_M = (grads_MH * rows_MH.to(grads_MH.dtype)).sum(-1)
    flat = torch.zeros(weights_TK.numel(), dtype=grads_MH.dtype, device=grads_MH.device)
    return flat.index_copy_(0, perm.order, products_M).view(weights_TK.shape)
