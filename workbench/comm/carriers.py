"""How rows get from rank to rank over torch.distributed: one collective, point to point, in rounds, or row by row.

Rows are uint8 [n, B], grouped by destination going out and by source coming in. What a rank sends itself is copied.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch.distributed as dist
from torch import Tensor

from workbench.comm.rank_plan import RankRound

Group = dist.ProcessGroup | None


def all_to_all(received: Tensor, rows: Tensor, send_counts: list[int], recv_counts: list[int], group: Group) -> None:
    """One collective; blocks may be empty."""
    dist.all_to_all_single(received, rows, recv_counts, send_counts, group=group)


def all_gather(
    received: Tensor, rows: Tensor, send_counts: list[int], recv_counts: list[int], group: Group, *, rank: int,
    collective: bool,
) -> None:  # fmt: skip
    """All ``rows`` to every rank that has a count. ``collective``: by the backend's own algorithm where all ranks
    send all ranks as much; otherwise straight to each rank, over the links that the plan names."""
    if collective and len({*recv_counts, *send_counts}) == 1:
        dist.all_gather_into_tensor(received, rows, group=group)
    else:
        _straight(received, rows, send_counts, recv_counts, group, rank=rank, sent_at=[0] * len(send_counts))


def point_to_point(
    received: Tensor, rows: Tensor, send_counts: list[int], recv_counts: list[int], group: Group, *, rank: int,
    rounds: Sequence[RankRound] = (),
) -> None:  # fmt: skip
    """Only blocks that hold rows. In rounds the next step starts when this rank's part of the one before is done."""
    starts = _starts(send_counts)
    _straight(received, rows, send_counts, recv_counts, group, rank=rank, sent_at=starts, rounds=rounds)


def _straight(
    received: Tensor, rows: Tensor, send_counts: list[int], recv_counts: list[int], group: Group, *, rank: int,
    sent_at: list[int], rounds: Sequence[RankRound] = (),
) -> None:  # fmt: skip
    """``sent_at`` is where in ``rows`` the block for each rank begins."""
    received_at = _starts(recv_counts)
    _copy_own(received, rows, received_at, sent_at, send_counts, rank)
    if not rounds:
        everything = [RankRound(_blocks(send_counts, rank), _blocks(recv_counts, rank))]
    for step in rounds or everything:
        operations = []
        for peer, count in step.receives:
            place = received[received_at[peer] : received_at[peer] + count]
            received_at[peer] += count
            operations.append(dist.P2POp(dist.irecv, place, group_peer=peer, group=group))
        for peer, count in step.sends:
            block = rows[sent_at[peer] : sent_at[peer] + count]
            sent_at[peer] += count
            operations.append(dist.P2POp(dist.isend, block, group_peer=peer, group=group))
        _run(operations)


def per_row(
    received: Tensor, rows: Tensor, send_counts: list[int], recv_counts: list[int], group: Group, *, rank: int
) -> None:
    """A message for every row."""
    sent_at, received_at = _starts(send_counts), _starts(recv_counts)
    _copy_own(received, rows, received_at, sent_at, send_counts, rank)
    operations = []
    for op, buffer, starts, counts in (
        (dist.irecv, received, received_at, recv_counts),
        (dist.isend, rows, sent_at, send_counts),
    ):
        for peer, count in _blocks(counts, rank):
            for index in range(count):
                row = buffer[starts[peer] + index]
                operations.append(dist.P2POp(op, row, group_peer=peer, group=group, tag=index))
    _run(operations)


def _run(operations: list[dist.P2POp]) -> None:
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def _copy_own(
    received: Tensor, rows: Tensor, received_at: list[int], sent_at: list[int], send_counts: list[int], rank: int
) -> None:
    own = send_counts[rank]
    if own:
        received[received_at[rank] : received_at[rank] + own] = rows[sent_at[rank] : sent_at[rank] + own]


def _blocks(counts: list[int], rank: int) -> tuple[tuple[int, int], ...]:
    """(peer, rows) of what leaves the rank, nearest peer after it first, so that ranks do not all start with one."""
    world = len(counts)
    peers = [(rank + step) % world for step in range(1, world)]
    return tuple((peer, counts[peer]) for peer in peers if counts[peer])


def _starts(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts[:-1])]
