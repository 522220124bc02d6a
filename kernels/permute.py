"""Tokens into expert order and back: sort, gather, weighted combine, and the block-to-expert table of a grouped GEMM.

T tokens, E experts, K top-k, H hidden, M routed (token, expert) pairs. Nothing here reads a tensor on the host
unless its docstring says so, so that a layer can be captured in a CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.backend import row_backend_on


@dataclass(frozen=True)
class Permutation:
    """``order`` int64 [M]: flat pair index ``t * K + k`` of each row, sorted by expert; ``offsets`` int64 [E + 1].

    Rows ``offsets[e]:offsets[e + 1]`` belong to expert e. Rows from ``offsets[E]`` on, present only if dropped
    pairs were kept, belong to no expert.
    """

    order: Tensor
    offsets: Tensor

    @property
    def num_rows(self) -> int:
        return self.order.shape[0]


@dataclass(frozen=True)
class BlockTable:
    """Which rows each block of a grouped GEMM works on.

    ``experts`` int32 [B], -1 in spare entries at the end; ``starts`` int64 [B], first row of the block, 0 in spare
    entries; ``padded_rows`` int64 scalar, rows counted with every expert filled up to whole blocks.
    """

    experts: Tensor
    starts: Tensor
    padded_rows: Tensor


def sort_by_expert(ids_TK: Tensor, num_experts: int, *, keep_dropped: bool = False) -> Permutation:
    """Stable order of the (token, expert) pairs by expert.

    Ids of -1 (dropped, or an expert of another rank) are left out, which on a GPU waits for the device to learn M.
    ``keep_dropped`` puts them last instead, past ``offsets[E]``: M is then T * K and nothing waits.
    Any other id outside 0..E-1 is the caller's fault and is not checked (that would wait, too).
    """
    flat = ids_TK.reshape(-1)
    keys = torch.where(flat < 0, num_experts, flat).to(torch.int32)
    ordered, order = torch.sort(keys, stable=True)
    edges = torch.arange(num_experts + 1, dtype=torch.int32, device=flat.device)
    offsets = torch.searchsorted(ordered, edges)
    if not keep_dropped:
        order = order[: int(offsets[-1])]
    return Permutation(order=order, offsets=offsets)


def gather_rows(x_TH: Tensor, perm: Permutation, top_k: int) -> Tensor:
    """Rows [M, H] in expert order: row m is the token of pair ``perm.order[m]``."""
    return x_TH.index_select(0, perm.order.div(top_k, rounding_mode="floor"))


def combine_rows(
    rows_MH: Tensor,
    perm: Permutation,
    weights_TK: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:
    """Weighted sum [T, H] of every token's expert rows, in float32 and in the order of k, so it repeats bit for bit.

    A pair without a row adds nothing. Returned in ``out_dtype``, or in the dtype of the rows.
    """
    row_of_pair_TK = _row_of_pair(perm, weights_TK.numel()).view(weights_TK.shape)
    return combine_at(rows_MH, row_of_pair_TK, weights_TK, out_dtype=out_dtype, backend=backend)


def combine_at(
    rows_MH: Tensor,
    row_of_pair_TK: Tensor,
    weights_TK: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:
    """``combine_rows`` for rows in any place: ``row_of_pair_TK`` (int64) says which row a pair has, -1 for none."""
    out_dtype = out_dtype or rows_MH.dtype
    if row_backend_on(rows_MH.device, backend) == "triton":
        from kernels.triton_rows import triton_combine

        return triton_combine(rows_MH, row_of_pair_TK, weights_TK, out_dtype=out_dtype)
    y_TH = torch.zeros(weights_TK.shape[0], rows_MH.shape[1], dtype=torch.float32, device=rows_MH.device)
    if rows_MH.is_cuda or bool((row_of_pair_TK < 0).any()):  # a GPU must not wait to learn it
        # A pair without a row has the index -1, which then finds this row of zeros.
        rows_MH = torch.cat([rows_MH, rows_MH.new_zeros(1, rows_MH.shape[1])])
        row_of_pair_TK = row_of_pair_TK.remainder(rows_MH.shape[0])
    weights_TK = weights_TK.float()
    for k in range(weights_TK.shape[1]):
        y_TH.addcmul_(rows_MH.index_select(0, row_of_pair_TK[:, k]).float(), weights_TK[:, k, None])
    return y_TH.to(out_dtype)


def _row_of_pair(perm: Permutation, num_pairs: int) -> Tensor:
    """int64 [T * K]: the row of each pair, -1 where it has none."""
    device = perm.order.device
    row_of_pair = torch.full((num_pairs,), -1, dtype=torch.int64, device=device)
    return row_of_pair.scatter_(0, perm.order, torch.arange(perm.num_rows, device=device))


def max_blocks(num_rows: int, num_groups: int, block: int) -> int:
    """Most blocks that ``num_rows`` rows in ragged groups can need: at most min(groups, rows) groups hold any."""
    return (num_rows + min(num_groups, num_rows) * (block - 1)) // block


def block_experts(counts_E: Tensor, block: int, *, num_rows: int | None = None) -> BlockTable:
    """Block-to-expert table for ``counts_E`` rows of each expert and ``block`` rows a block.

    Counts [2, 3, 0, 6, 8] with block 4 give experts [0, 1, 3, 3, 4, 4], then -1, and 24 padded rows: expert 2 has no
    block. The table has ``max_blocks`` entries; without ``num_rows`` their sum is read on the host.
    """
    if block < 1:
        raise ValueError(f"block: {block} rows a block; give at least 1")
    counts_E = counts_E.to(torch.int64)
    if num_rows is None:
        num_rows = int(counts_E.sum())
    num_experts = counts_E.shape[0]
    blocks_E = (counts_E + block - 1).div(block, rounding_mode="floor")
    ends_E = blocks_E.cumsum(0)
    index_B = torch.arange(max_blocks(num_rows, num_experts, block), device=counts_E.device)
    experts_B = torch.searchsorted(ends_E, index_B, right=True)
    spare_B = experts_B >= num_experts
    safe_B = experts_B.clamp(max=num_experts - 1)
    first_row_E = counts_E.cumsum(0) - counts_E
    starts_B = first_row_E[safe_B] + (index_B - (ends_E - blocks_E)[safe_B]) * block
    return BlockTable(
        experts=experts_B.masked_fill(spare_B, -1).to(torch.int32),
        starts=starts_B.masked_fill(spare_B, 0),
        padded_rows=blocks_E.sum() * block,
    )
