"""Runs one rank's part of a dispatch plan over a transport.

H hidden, n rows of the last buffer, W metadata columns. The order of all sums is fixed by the plan.
"""

import torch
from torch import Tensor

from workbench.comm.payload import decode_rows, encode_rows
from workbench.comm.plan import Arrivals, DispatchPlan
from workbench.comm.rank_plan import RankPlan, prepare_rank
from workbench.comm.transport import TorchTransport


class DispatchMismatch(RuntimeError):
    """What arrived is not what the plan promised."""


def dispatch(plan: RankPlan | DispatchPlan, transport: TorchTransport, x_bytes: Tensor) -> Tensor:
    """Encoded tokens [T, B] to the rank's last buffer, uint8 [n, B + metadata]; without hops it is ``x_bytes``.

    Counts are exchanged before each hop whose receivers do not know them, and compared with the plan
    (DispatchMismatch, naming the rank and both). In host memory the buffer holds until the next dispatch over ``plan``.
    """
    mine = _mine(plan, transport)
    if mine.hops and x_bytes.shape[0] != mine.hops[0].num_rows:
        raise ValueError(f"dispatch: {x_bytes.shape[0]} tokens for a plan of {mine.hops[0].num_rows}")
    buffer = x_bytes
    for index, hop in enumerate(mine.hops):
        rows = hop.pick(buffer)
        if index == 0 and mine.metadata is not None:
            rows = torch.cat([rows, mine.metadata], dim=1)
        counts = hop.recv_counts if hop.announced else transport.exchange_counts(hop.send_counts)
        if counts != hop.recv_counts:
            raise DispatchMismatch(f"rank {mine.rank}: row counts {counts} arrive, the plan says {hop.recv_counts}")
        buffer = transport.carry(rows, hop)
    return buffer


def received_ids(plan: RankPlan, buffer: Tensor) -> tuple[Tensor, Tensor]:
    """Routing as it arrived behind the rows: local slots int32 [n, W] (-1 = not here) and weights float32 [n, W].

    Feeds ``kernels``' layer directly: rows are its tokens. Without hops it is the plan's own.
    """
    if plan.metadata is None:
        return plan.ids, plan.weights
    width = plan.metadata_bytes // 2
    tail = buffer[:, buffer.shape[1] - 2 * width :]
    slots = tail[:, :width].clone(memory_format=torch.contiguous_format).view(torch.int32)
    weights = tail[:, width:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    local = slots - plan.rank * plan.slots_per_rank
    here = (slots >= 0) & (local >= 0) & (local < plan.slots_per_rank)
    return torch.where(here, local, -1), torch.where(here, weights, 0.0)


def verify_arrivals(plan: RankPlan, ids: Tensor, weights: Tensor) -> None:
    """Raises DispatchMismatch unless received ids and weights are, row by row, the plan's arrivals."""
    got = _sorted_arrivals(ids.cpu(), weights.cpu())
    for name in ("rows", "slots", "weights"):
        found, wanted = getattr(got, name), getattr(plan.arrivals, name)
        if found.shape != wanted.shape:
            raise DispatchMismatch(f"rank {plan.rank}: {found.size} pairs arrived, the plan says {wanted.size}")
        if (found != wanted).any():
            pair = int((found != wanted).argmax())
            raise DispatchMismatch(
                f"rank {plan.rank}: {name} of pair {pair} (row {plan.arrivals.rows[pair]}) arrived as"
                f" {found[pair]}, the plan says {wanted[pair]}"
            )


def combine(plan: RankPlan | DispatchPlan, transport: TorchTransport, rows_nH: Tensor, *, dtype: str) -> Tensor:
    """Per-row sums of the last buffer [n, H] back to the tokens, float32 [T, H].

    ``rows_nH`` holds, for each buffer row, the weighted sum over the experts it fed. Each hop encodes its rows as
    ``dtype``, and every sum is float32 in the order of the plan.
    """
    mine = _mine(plan, transport)
    if rows_nH.shape[0] != mine.num_rows:
        raise ValueError(f"combine: {rows_nH.shape[0]} rows for a buffer of {mine.num_rows}")
    hidden = rows_nH.shape[1]
    values = rows_nH.float()
    for hop in reversed(mine.hops):
        received = transport.carry_back(encode_rows(values, dtype), hop)
        returned = decode_rows(received, hidden, dtype, out_dtype=torch.float32)
        values = torch.zeros(hop.num_rows, hidden, dtype=torch.float32, device=rows_nH.device)
        for targets, sources in hop.sums:
            values.index_add_(0, targets, returned.index_select(0, sources))
    return values


def reduce_pairs(plan: RankPlan, outputs_PH: Tensor) -> Tensor:
    """Weighted sums per buffer row, float32 [n, H], of expert outputs in the order of ``plan.arrivals``."""
    values = torch.zeros(plan.num_rows, outputs_PH.shape[1], dtype=torch.float32, device=outputs_PH.device)
    here = plan.ids >= 0
    pair = (here.flatten().cumsum(0) - 1).reshape(here.shape)
    for column in range(plan.ids.shape[1]):
        rows = here[:, column].nonzero().squeeze(1)
        weights = plan.weights[rows, column].unsqueeze(1)
        values.index_add_(0, rows, outputs_PH[pair[rows, column]].float() * weights)
    return values


def _mine(plan: RankPlan | DispatchPlan, transport: TorchTransport) -> RankPlan:
    if isinstance(plan, RankPlan):
        return plan
    return prepare_rank(plan, rank=transport.rank, device=transport.device)


def _sorted_arrivals(ids: Tensor, weights: Tensor) -> Arrivals:
    """Pairs by (row, slot)."""
    row, column = (ids >= 0).nonzero(as_tuple=True)
    slots = ids[row, column]
    order = torch.argsort(row * (int(slots.max()) + 1 if slots.numel() else 1) + slots, stable=True)
    pairs = (row[order], slots[order], weights[row, column][order])
    return Arrivals(*(part.numpy() for part in pairs))
