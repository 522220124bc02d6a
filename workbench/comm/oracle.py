"""What a plan must deliver, computed in one process without any transport."""

import numpy as np
import torch
from torch import Tensor

from workbench.comm.hop import PADDING, Pairs, pairs_of
from workbench.comm.payload import decode_rows, encode_rows
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import metadata_rows


def origins(plan: DispatchPlan, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Home of every row in a rank's last buffer: source rank, token, and index in the source's first send list.

    The token of a padding row is ``PADDING``; only a first hop has such rows.
    """
    rows = np.arange(plan.num_rows(rank))
    ranks, sent = np.full(rows.size, rank), rows
    for hop in reversed(plan.hops):
        ranks, sent, rows = hop.trace(ranks, rows)
    return ranks, rows, sent


def expected_buffer(plan: DispatchPlan, rank: int, all_ranks_bytes: list[Tensor]) -> Tensor:
    """The exact last buffer of ``rank``, uint8 [n, B + metadata], from every rank's encoded tokens [T, B]."""
    source, token, sent = origins(plan, rank)
    source_n, token_n = torch.from_numpy(source), torch.from_numpy(token)
    width = all_ranks_bytes[0].shape[1]
    meta_width = 0 if plan.carried is None else 8 * plan.carried.width
    buffer = torch.zeros(source.size, width + meta_width, dtype=torch.uint8)
    for home in np.unique(source).tolist():
        here = (source_n == home).nonzero().squeeze(1)
        real = here[token_n[here] != PADDING]
        buffer[real, :width] = all_ranks_bytes[home].cpu()[token_n[real]]
        metadata = metadata_rows(plan, home)
        if metadata is not None:
            buffer[here, width:] = torch.from_numpy(metadata[sent[here.numpy()] % len(metadata)])
    return buffer


def expected_sums(plan: DispatchPlan, all_ranks_rows: list[Tensor], *, dtype: str) -> list[Tensor]:
    """What combine must give every rank, float32 [T, H] each, bit for bit, from every rank's rows [n, H].

    Rows go back hop by hop, encoded as ``dtype`` anew in each, and every sum is float32 in the order of sending.
    """
    values, hidden = [rows.float() for rows in all_ranks_rows], all_ranks_rows[0].shape[1]
    for number in reversed(range(len(plan.hops))):
        hop, held_R = plan.hops[number], plan.hops[number - 1].send_counts.sum(axis=0) if number else plan.tokens_R
        back = [decode_rows(encode_rows(rows, dtype), hidden, dtype, out_dtype=torch.float32) for rows in values]
        blocks = [rows.split(hop.send_counts[:, peer].tolist()) for peer, rows in enumerate(back)]
        values = []
        for rank, sent in enumerate(hop.send_rows):
            returned = torch.cat([blocks[peer][rank] for peer in range(plan.num_ranks)]).numpy()
            total_nH, real = np.zeros((int(held_R[rank]), hidden), np.float32), sent != PADDING
            np.add.at(total_nH, sent[real], returned[real])
            values.append(torch.from_numpy(total_nH))
    return values


def plain_sums(plan: DispatchPlan, all_ranks_rows: list[Tensor]) -> list[Tensor]:
    """Every row of the last buffers added straight to its token, float64 [T, H] a rank, without a wire in between."""
    sums = [torch.zeros(tokens, all_ranks_rows[0].shape[1], dtype=torch.float64) for tokens in plan.tokens_R]
    for rank, rows in enumerate(all_ranks_rows):
        source, token, _ = origins(plan, rank)
        for home in np.unique(source).tolist():
            here = torch.from_numpy(np.flatnonzero((source == home) & (token != PADDING)))
            sums[home].index_add_(0, torch.from_numpy(token)[here], rows[here].double())
    return sums


def misdelivered(plan: DispatchPlan, slots: np.ndarray, weights: np.ndarray) -> list[str]:
    """How the plan's arrivals differ from the routing they came from; empty when every pair arrives once.

    slots int32 [R, T, K] (-1 = dropped) and weights float32 are what the strategy was given.
    """
    wanted, _ = pairs_of(slots, weights)
    parts = []
    for rank, arrivals in enumerate(plan.arrivals):
        source, token, _ = origins(plan, rank)
        slot = rank * plan.slots_per_rank + arrivals.slots.astype(np.int64)
        parts.append(Pairs(source[arrivals.rows], token[arrivals.rows], slot, arrivals.weights))
    got = Pairs(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("rank", "row", "slot", "weight")))
    if got.slot.size != wanted.slot.size:
        return [f"{got.slot.size} pairs arrive, {wanted.slot.size} were routed"]
    faults = []
    for first, second in zip(_ordered(got), _ordered(wanted), strict=True):
        if (first != second).any():
            at = int((first != second).argmax())
            faults.append(f"pair {at}: {first[at]} arrives, {second[at]} was routed")
    return faults


def _ordered(pairs: Pairs) -> tuple[np.ndarray, ...]:
    order = np.lexsort((pairs.weight, pairs.slot, pairs.row, pairs.rank))
    return pairs.rank[order], pairs.row[order], pairs.slot[order], pairs.weight[order]
