"""One rank's part of a plan as tensors on its device, made outside of what is timed.

n rows of the last buffer, W pairs a row at most, T tokens of the rank.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from workbench.comm.hop import PADDING, Carrier, Hop
from workbench.comm.plan import Arrivals, DispatchPlan


@dataclass(frozen=True)
class RankRound:
    """What one rank sends and receives in a step: (peer, rows) each, to be taken in order from the peer's block."""

    sends: tuple[tuple[int, int], ...]
    receives: tuple[tuple[int, int], ...]

    @property
    def reverse(self) -> "RankRound":
        return RankRound(self.receives, self.sends)


@dataclass(frozen=True, eq=False)
class RankHop:
    """``sums`` add up combine's rows: in each, buffer rows ``targets`` (all different) add sent rows ``sources``.

    ``padding`` are the places of ``send_rows`` that hold zeros, None where there are none. ``inbox`` is memory kept
    for what comes in, and for what is picked to go out.
    """

    send_rows: Tensor
    padding: Tensor | None
    send_counts: list[int]
    recv_counts: list[int]
    num_rows: int
    sums: tuple[tuple[Tensor, Tensor], ...]
    carrier: Carrier
    rounds: tuple[RankRound, ...]
    announced: bool
    inbox: dict[tuple[str, int], Tensor] = field(default_factory=dict, repr=False)

    def pick(self, buffer: Tensor) -> Tensor:
        """The rows to hand over, [rows, B]; in host memory until the next rows of that width are picked."""
        place = self._outbox(buffer)
        if buffer.shape[0]:
            torch.index_select(buffer, 0, self.send_rows, out=place)
        else:
            place.zero_()
        return place if self.padding is None else place.index_fill_(0, self.padding, 0)

    def _outbox(self, buffer: Tensor) -> Tensor:
        """Room for the rows that go out: kept in host memory, where new pages cost several times what the copy does."""
        shape = (len(self.send_rows), buffer.shape[1])
        if buffer.is_cuda:
            return buffer.new_empty(shape)
        key = (f"out {buffer.dtype}", shape[1])
        if key not in self.inbox:
            self.inbox[key] = buffer.new_empty(shape)
        return self.inbox[key]


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
    hops, num_rows = [], plan.tokens_R[rank]
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
    """uint8 [rows that ``rank`` hands over first, 8W]: W slots int32 (-1 = none), then W weights float32."""
    carried = plan.carried
    if carried is None:
        return None
    start, size = sum(map(plan.hops[0].handed_over, range(rank))), plan.hops[0].handed_over(rank)
    mine = (carried.row >= start) & (carried.row < start + size)
    place = (carried.row[mine] - start, carried.column[mine])
    slots, weights = np.full((size, carried.width), -1, "<i4"), np.zeros((size, carried.width), "<f4")
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
    rows, handed_over = hop.send_rows[rank], hop.handed_over(rank)
    padding = np.flatnonzero(rows == PADDING)
    return RankHop(
        send_rows=torch.from_numpy(np.maximum(rows[:handed_over], 0)).to(device),
        padding=torch.from_numpy(padding).to(device) if padding.size else None,
        send_counts=hop.send_counts[rank].tolist(),
        recv_counts=hop.send_counts[:, rank].tolist(),
        num_rows=num_rows,
        sums=tuple((t.to(device), s.to(device)) for t, s in _sums(rows)),
        carrier=hop.carrier,
        rounds=tuple(_rank_round(step.destination, step.rows, rank) for step in hop.rounds),
        announced=hop.announced,
    )


def _rank_round(destination: np.ndarray, rows: np.ndarray, rank: int) -> RankRound:
    sends = ((int(destination[rank]), int(rows[rank])),) if rows[rank] else ()
    sources = np.flatnonzero((destination == rank) & (rows > 0))
    return RankRound(sends, tuple((int(peer), int(rows[peer])) for peer in sources))


def _sums(rows: np.ndarray) -> list[tuple[Tensor, Tensor]]:
    """Splits sends by how often their row was sent before, so that a sum adds to each row once, in send order."""
    real = np.flatnonzero(rows != PADDING)
    order = real[np.argsort(rows[real], kind="stable")]
    ordered = rows[order]
    turn = np.arange(order.size) - np.searchsorted(ordered, ordered)
    sums = []
    for number in range(int(turn.max(initial=-1)) + 1):
        chosen = turn == number
        sums.append((torch.from_numpy(ordered[chosen]), torch.from_numpy(order[chosen])))
    return sums
