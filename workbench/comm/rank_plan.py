"""One rank's part of a plan as tensors on its device, made outside of what is timed.

n rows of the last buffer, W pairs a row at most, T tokens of the rank.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.comm.plan import Arrivals, DispatchPlan, Hop


@dataclass(frozen=True, eq=False)
class RankHop:
    """``rounds`` sum combine's rows: in each, buffer rows ``targets`` (all different) add sent rows ``sources``."""

    send_rows: Tensor
    send_counts: list[int]
    recv_counts: list[int]
    num_rows: int
    rounds: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True, eq=False)
class RankPlan:
    """``metadata`` uint8 [rows sent first, 8W] rides behind the payload; None where nothing is exchanged.

    ``ids`` int32 [n, W] local slots (-1 = none) and ``weights`` float32 [n, W] are what the experts should get.
    """

    rank: int
    slots_per_rank: int
    hops: tuple[RankHop, ...]
    metadata: Tensor | None
    arrivals: Arrivals
    ids: Tensor
    weights: Tensor

    @property
    def num_rows(self) -> int:
        return self.ids.shape[0]

    @property
    def metadata_bytes(self) -> int:
        return 0 if self.metadata is None else self.metadata.shape[1]


def prepare_rank(plan: DispatchPlan, *, rank: int, device: torch.device | str = "cpu") -> RankPlan:
    """The part of ``rank``, on ``device``."""
    hops, num_rows = [], plan.num_tokens
    for hop in plan.hops:
        hops.append(_rank_hop(hop, rank, num_rows, device))
        num_rows = int(hop.send_counts[:, rank].sum())
    metadata = metadata_rows(plan, rank)
    arrivals = plan.arrivals[rank]
    ids, weights = arrival_table(arrivals, plan.num_rows(rank))
    return RankPlan(
        rank,
        plan.slots_per_rank,
        tuple(hops),
        None if metadata is None else torch.from_numpy(metadata).to(device),
        arrivals,
        torch.from_numpy(ids).to(device),
        torch.from_numpy(weights).to(device),
    )


def metadata_rows(plan: DispatchPlan, rank: int) -> np.ndarray | None:
    """uint8 [rows that ``rank`` sends first, 8W]: W slots int32 (-1 = none), then W weights float32."""
    carried = plan.carried
    if carried is None:
        return None
    sizes = [rows.size for rows in plan.hops[0].send_rows]
    start = sum(sizes[:rank])
    mine = (carried.row >= start) & (carried.row < start + sizes[rank])
    place = (carried.row[mine] - start, carried.column[mine])
    slots = np.full((sizes[rank], carried.width), -1, "<i4")
    weights = np.zeros((sizes[rank], carried.width), "<f4")
    slots[place], weights[place] = carried.slot[mine], carried.weight[mine]
    return np.concatenate([slots.view(np.uint8), weights.view(np.uint8)], axis=1)


def arrival_table(arrivals: Arrivals, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals as ids int32 [n, W] (-1 = none) and weights float32 [n, W], in each row by slot; W at least 1."""
    per_row = np.bincount(arrivals.rows, minlength=num_rows)
    column = np.arange(arrivals.rows.size) - (np.cumsum(per_row) - per_row)[arrivals.rows]
    width = max(1, int(per_row.max(initial=0)))
    ids, weights = np.full((num_rows, width), -1, np.int32), np.zeros((num_rows, width), np.float32)
    ids[arrivals.rows, column], weights[arrivals.rows, column] = arrivals.slots, arrivals.weights
    return ids, weights


def _rank_hop(hop: Hop, rank: int, num_rows: int, device: torch.device | str) -> RankHop:
    rows = hop.send_rows[rank]
    return RankHop(
        send_rows=torch.from_numpy(rows).to(device),
        send_counts=hop.send_counts[rank].tolist(),
        recv_counts=hop.send_counts[:, rank].tolist(),
        num_rows=num_rows,
        rounds=tuple((t.to(device), s.to(device)) for t, s in _rounds(rows)),
    )


def _rounds(rows: np.ndarray) -> list[tuple[Tensor, Tensor]]:
    """Splits sends by how often their row was sent before, so that a round adds to each row once, in send order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    turn = np.arange(rows.size) - np.searchsorted(ordered, ordered)
    rounds = []
    for number in range(int(turn.max(initial=-1)) + 1):
        chosen = turn == number
        rounds.append((torch.from_numpy(ordered[chosen]), torch.from_numpy(order[chosen])))
    return rounds
