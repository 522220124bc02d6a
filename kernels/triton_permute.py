"""Expert order and the table of row blocks in one launch, and the sum of a token's rows.

T tokens, K top-k, P = T * K pairs, E experts, H hidden, B row blocks.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dependent import launch_options, let_next_in, wait_for_inputs
from kernels.grouped_gemm.tiles import is_direct
from kernels.grouped_gemm.triton_gemm import block_table
from kernels.permute import max_blocks
from kernels.triton_rows import storable

PAIRS, CHUNK, ENTRIES = 32, 256, 32
# Comparing every pair with every other takes one launch, counting takes three; it grows with the square of the pairs.
MAX_COMPARED_PAIRS = 2048


@dataclass(frozen=True)
class RowPlan:
    """Which rows each block of the fused GEMMs works on.

    ``order`` int64 [P]: pair of each row in expert order, or None where rows are their own pairs; ``offsets`` int64
    [E + 1], ``starts`` int64 [B]; ``experts`` int [B], outside 0..E-1 where there is nothing to do.
    ``direct``: block b is the single pair b, ``experts`` are the ids, and nothing was sorted.
    """

    experts: Tensor
    order: Tensor | None = None
    offsets: Tensor | None = None
    starts: Tensor | None = None
    direct: bool = False

    @property
    def num_blocks(self) -> int:
        return self.experts.shape[0]


@triton.jit(do_not_specialize=["num_pairs", "num_entries", "pair_programs", "num_experts"])
def plan_kernel(
    ids_ptr, order_ptr, offsets_ptr, experts_ptr, starts_ptr, num_pairs, num_entries, pair_programs, num_experts,
    padded_groups: tl.constexpr, block_m: tl.constexpr, pairs: tl.constexpr, chunk: tl.constexpr,
    entries: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """Stable order by expert, found by counting the pairs that come before; ids of -1 come last, past the offsets.

    Ids [2, 0, 0, -1] of 3 experts with blocks of 1: order [1, 2, 0, 3], offsets [0, 2, 2, 3], experts [0, 0, 2, -1].
    Torch twins: ``permute.sort_by_expert`` with ``keep_dropped``, and ``permute.block_experts``.
    """
    wait_for_inputs(dependent)
    let_next_in(dependent)
    pid = tl.program_id(0)
    if pid < pair_programs:
        mine = pid * pairs + tl.arange(0, pairs)
        key = tl.load(ids_ptr + mine, mask=mine < num_pairs, other=-1).to(tl.int32)
        key = tl.where(key < 0, num_experts, key)
        place = tl.zeros((pairs,), dtype=tl.int32)
        for first in range(0, num_pairs, chunk):
            other = first + tl.arange(0, chunk)
            rival = tl.load(ids_ptr + other, mask=other < num_pairs, other=-1).to(tl.int32)
            rival = tl.where(rival < 0, num_experts, rival)
            rival = tl.where(other < num_pairs, rival, num_experts + 1)
            earlier = (rival[None, :] == key[:, None]) & (other[None, :] < mine[:, None])
            place += tl.sum(((rival[None, :] < key[:, None]) | earlier).to(tl.int32), 1)
        tl.store(order_ptr + place, mine.to(tl.int64), mask=mine < num_pairs)
    else:
        counts = tl.zeros((padded_groups,), dtype=tl.int32)
        for first in range(0, num_pairs, chunk):
            other = first + tl.arange(0, chunk)
            rival = tl.load(ids_ptr + other, mask=other < num_pairs, other=-1).to(tl.int32)
            rival = tl.where(rival < 0, padded_groups - 1, rival)
            counts += tl.histogram(rival, padded_groups)
        write_table(
            counts, pid - pair_programs, offsets_ptr, experts_ptr, starts_ptr, num_entries, num_experts, padded_groups,
            block_m, entries,
        )  # fmt: skip


@triton.jit
def write_table(
    counts, program, offsets_ptr, experts_ptr, starts_ptr, num_entries, num_experts, padded_groups: tl.constexpr,
    block_m: tl.constexpr, entries: tl.constexpr,
):  # fmt: skip
    """From the rows of every group, [G]: offsets (the first program), and this program's entries of the block table."""
    group = tl.arange(0, padded_groups)
    counts = tl.where(group < num_experts, counts, 0)
    last = tl.cumsum(counts, 0)
    if program == 0:
        tl.store(offsets_ptr + group + 1, last.to(tl.int64), mask=group < num_experts)
        tl.store(offsets_ptr + group, (last - counts).to(tl.int64), mask=group == 0)
    blocks = (counts + block_m - 1) // block_m
    ends = tl.cumsum(blocks, 0)
    entry = program * entries + tl.arange(0, entries)
    found = (entry[:, None] >= (ends - blocks)[None, :]) & (entry[:, None] < ends[None, :])
    expert = tl.sum(tl.where(found, group[None, :] + 1, 0), 1) - 1
    start = (last - counts)[None, :] + (entry[:, None] - (ends - blocks)[None, :]) * block_m
    tl.store(experts_ptr + entry, expert, mask=entry < num_entries)
    tl.store(starts_ptr + entry, tl.sum(tl.where(found, start, 0), 1).to(tl.int64), mask=entry < num_entries)


@triton.jit(do_not_specialize=["num_pairs", "num_experts"])
def count_kernel(ids_ptr, counts_ptr, num_pairs, num_experts, padded_groups: tl.constexpr, chunk: tl.constexpr):
    """Rows of every group in this program's pairs, [B, G]; ids of -1 are the group ``num_experts``."""
    mine = tl.program_id(0) * chunk + tl.arange(0, chunk)
    key = tl.load(ids_ptr + mine, mask=mine < num_pairs, other=-1).to(tl.int32)
    key = tl.where(mine < num_pairs, tl.where(key < 0, num_experts, key), padded_groups - 1)
    counts = tl.histogram(key, padded_groups)
    tl.store(counts_ptr + tl.program_id(0) * padded_groups + tl.arange(0, padded_groups), counts)


@triton.jit(do_not_specialize=["num_chunks"])
def scan_kernel(counts_ptr, totals_ptr, num_chunks, padded_groups: tl.constexpr, groups: tl.constexpr):
    """Counts [B, G] become the rows of the chunks before, and ``totals`` [G] their sums."""
    group = tl.program_id(0) * groups + tl.arange(0, groups)
    before = tl.zeros((groups,), dtype=tl.int32)
    for first in range(0, num_chunks, 64):
        chunk = first + tl.arange(0, 64)
        pointers = counts_ptr + chunk[:, None] * padded_groups + group[None, :]
        counts = tl.load(pointers, mask=(chunk < num_chunks)[:, None], other=0)
        tl.store(pointers, before[None, :] + tl.cumsum(counts, 0) - counts, mask=(chunk < num_chunks)[:, None])
        before += tl.sum(counts, 0)
    tl.store(totals_ptr + group, before)


@triton.jit(do_not_specialize=["num_pairs", "num_entries", "pair_programs", "num_experts"])
def place_kernel(
    ids_ptr, counts_ptr, totals_ptr, order_ptr, offsets_ptr, experts_ptr, starts_ptr,
    num_pairs, num_entries, pair_programs, num_experts,
    padded_groups: tl.constexpr, block_m: tl.constexpr, chunk: tl.constexpr, entries: tl.constexpr,
):  # fmt: skip
    """``plan_kernel`` for many pairs: a pair comes after the smaller groups, and after its own in earlier chunks."""
    pid = tl.program_id(0)
    totals = tl.load(totals_ptr + tl.arange(0, padded_groups))
    if pid < pair_programs:
        lane = tl.arange(0, chunk)
        mine = pid * chunk + lane
        key = tl.load(ids_ptr + mine, mask=mine < num_pairs, other=-1).to(tl.int32)
        key = tl.where(key < 0, num_experts, key)
        smaller = tl.arange(0, padded_groups)[None, :] < key[:, None]
        place = tl.sum(tl.where(smaller, totals[None, :], 0), 1)
        place += tl.load(counts_ptr + pid * padded_groups + key)
        for first in range(0, chunk, 32):
            other = pid * chunk + first + tl.arange(0, 32)
            rival = tl.load(ids_ptr + other, mask=other < num_pairs, other=-1).to(tl.int32)
            rival = tl.where(rival < 0, num_experts, rival)
            earlier = (rival[None, :] == key[:, None]) & (other[None, :] < mine[:, None])
            place += tl.sum(earlier.to(tl.int32), 1)
        tl.store(order_ptr + place, mine.to(tl.int64), mask=mine < num_pairs)
    else:
        write_table(
            totals, pid - pair_programs, offsets_ptr, experts_ptr, starts_ptr, num_entries, num_experts, padded_groups,
            block_m, entries,
        )  # fmt: skip


@triton.jit
def combine_pairs_kernel(
    rows_ptr, ids_ptr, shared_ptr, out_ptr, hidden, top_k: tl.constexpr, has_shared: tl.constexpr,
    block_columns: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    """y[t] = sum over k of rows[t * K + k] (weighted already) in float32, in the order of k; ids of -1 add nothing.

    Example: rows [[1], [10]] of one token: 11. Torch twin: ``kernels.permute.combine_rows`` with weights of 1.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    total = tl.zeros((block_columns,), dtype=tl.float32)
    wait_for_inputs(dependent)
    let_next_in(dependent)
    if has_shared:
        total += tl.load(shared_ptr + token * hidden + columns, mask=columns < hidden, other=0.0).to(tl.float32)
    for k in tl.static_range(top_k):
        pair = token * top_k + k
        present = columns < tl.where(tl.load(ids_ptr + pair) >= 0, hidden, 0)
        total += tl.load(rows_ptr + pair * hidden + columns, mask=present, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=columns < hidden)


def plan_pairs(ids_TK: Tensor, num_experts: int, *, block_m: int) -> RowPlan:
    """The plan of routed tokens; where pairs are few beside the experts they are not sorted at all."""
    num_pairs, device = ids_TK.numel(), ids_TK.device
    ids = ids_TK.reshape(-1)
    if is_direct(num_pairs, num_experts):
        return RowPlan(experts=ids, direct=True)
    num_entries = max_blocks(num_pairs, num_experts, block_m)
    order, starts = (torch.empty(n, dtype=torch.int64, device=device) for n in (num_pairs, num_entries))
    offsets = torch.empty(num_experts + 1, dtype=torch.int64, device=device)
    experts = torch.empty(num_entries, dtype=torch.int32, device=device)
    compared = num_pairs <= MAX_COMPARED_PAIRS
    pairs, entries = PAIRS if compared else CHUNK, triton.cdiv(num_entries, ENTRIES)
    programs, results = triton.cdiv(num_pairs, pairs), (order, offsets, experts, starts)
    numbers = (num_pairs, num_entries, programs, num_experts)
    sizes = {"padded_groups": triton.next_power_of_2(num_experts + 2), "block_m": block_m, "entries": ENTRIES}
    with torch.cuda.device_of(ids):
        if compared:
            plan_kernel[(programs + entries,)](
                ids, *results, *numbers, pairs=PAIRS, chunk=CHUNK, **sizes, **launch_options(device)
            )
        else:
            counted = _count(ids, programs, num_experts, sizes["padded_groups"])
            place_kernel[(programs + entries,)](ids, *counted, *results, *numbers, chunk=CHUNK, **sizes)
    return RowPlan(experts, order, offsets, starts)


def _count(ids: Tensor, chunks: int, num_experts: int, groups: int) -> tuple[Tensor, Tensor]:
    """Rows of every group in the chunks before each chunk, int32 [B, G], and in all, int32 [G]."""
    counts = torch.empty(chunks, groups, dtype=torch.int32, device=ids.device)
    totals = torch.empty(groups, dtype=torch.int32, device=ids.device)
    count_kernel[(chunks,)](ids, counts, ids.numel(), num_experts, padded_groups=groups, chunk=CHUNK)
    scan_kernel[(triton.cdiv(groups, 16),)](counts, totals, chunks, padded_groups=groups, groups=min(16, groups))
    return counts, totals


def plan_sorted(offsets: Tensor, *, num_rows: int, block_m: int) -> RowPlan:
    """The plan of rows that are in expert order already."""
    experts, starts = block_table(offsets, num_rows=num_rows, block=block_m)
    return RowPlan(experts, None, offsets, starts)


def combine_pairs(
    rows_PH: Tensor, ids_TK: Tensor, *, out_dtype: torch.dtype, shared_TH: Tensor | None = None
) -> Tensor:
    """Sums [T, H] of every token's weighted rows, plus ``shared_TH``."""
    (num_tokens, top_k), hidden = ids_TK.shape, rows_PH.shape[1]
    out = torch.empty(num_tokens, hidden, dtype=storable(out_dtype), device=rows_PH.device)
    block = min(1024, triton.next_power_of_2(max(hidden, 1)))
    if out.numel():
        combine_pairs_kernel[(num_tokens, triton.cdiv(hidden, block))](
            rows_PH, ids_TK.contiguous(), shared_TH, out, hidden,
            top_k=top_k, has_shared=shared_TH is not None, block_columns=block,
            **launch_options(rows_PH.device),
        )  # fmt: skip
    return out.to(out_dtype)
