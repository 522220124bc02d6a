"""How rows get from rank to rank over torch.distributed: one collective, point to point, in rounds, or row by row.

Rows are uint8 [n, B], grouped by destination going out and by source coming in. What a rank sends itself is copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from workbench.comm.hop import Carrier
from workbench.comm.rank_plan import RankRound


@dataclass(frozen=True, eq=False)
class Exchange:
    """One rank's rows out and the place for those that come in, by peer."""

    received: Tensor
    rows: Tensor
    send_counts: list[int]
    recv_counts: list[int]
    group: dist.ProcessGroup | None
    rank: int


class Message(NamedTuple):
    """Rows to one peer or from it: ``operation`` is dist.isend or dist.irecv."""

    operation: Callable[..., dist.Work | None]
    rows: Tensor
    peer: int
    tag: int = 0


PEER = {dist.isend: "group_dst", dist.irecv: "group_src"}


def carry(
    exchange: Exchange,
    carrier: Carrier,
    *,
    rounds: Sequence[RankRound] = (),
    whole: bool = False,
    batched: bool = False,
) -> None:
    """Fills ``exchange.received``. ``whole``: an all-to-all is the backend's own; ``batched``: the backend has a gather
    of its own, and must be told of messages to and from several peers at once.

    gloo's own only within one host: it starts to send before it has told every peer that it is ready to receive, and
    that word waits behind the rows on the same connection, so that two ranks send one after the other. On links that
    are slower than the memory this took up to 1.4 times as long as the links need, so there all receives come first;
    through memory it takes a tenth less.
    """
    match carrier:
        case "all_to_all" if whole:
            counts = exchange.recv_counts, exchange.send_counts
            dist.all_to_all_single(exchange.received, exchange.rows, *counts, group=exchange.group)
        case "all_gather":
            _all_gather(exchange, batched=batched)
        case "all_to_all" | "point_to_point":
            _blockwise(exchange, _starts(exchange.send_counts), rounds, batched=batched)
        case "per_row":
            _row_by_row(exchange, batched=batched)


def _all_gather(exchange: Exchange, *, batched: bool) -> None:
    """All rows to every rank that has a count.

    A backend's gather has its own way through the network, so it serves only where all links are alike: every rank
    sends as much to every other.
    """
    if batched and len({*exchange.recv_counts, *exchange.send_counts}) == 1:
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name in torch 2.11
        gather(exchange.received, exchange.rows, group=exchange.group)
    else:
        _blockwise(exchange, [0] * len(exchange.send_counts), batched=batched)


def _blockwise(
    exchange: Exchange, sent_at: list[int], rounds: Sequence[RankRound] = (), *, batched: bool
) -> None:  # fmt: skip
    """A message for every block that holds rows; those to a rank begin at its ``sent_at``.

    In rounds the next step starts when this rank's part of the one before is done.
    """
    received_at = _starts(exchange.recv_counts)
    everything = RankRound(_leaving(exchange.send_counts, exchange.rank), _leaving(exchange.recv_counts, exchange.rank))
    for number, step in enumerate(rounds or (everything,)):
        operations = []
        for peer, count in step.receives:
            place = exchange.received[received_at[peer] : received_at[peer] + count]
            received_at[peer] += count
            operations.append(Message(dist.irecv, place, peer))
        for peer, count in step.sends:
            block = exchange.rows[sent_at[peer] : sent_at[peer] + count]
            sent_at[peer] += count
            operations.append(Message(dist.isend, block, peer))
        started = _start(operations, exchange.group, batched=batched)
        if number == 0:
            _copy_own(exchange, sent_at, received_at)  # while the first messages travel
        for work in started:
            work.wait()


def _row_by_row(exchange: Exchange, *, batched: bool) -> None:
    """A message for every row."""
    sent_at, received_at = _starts(exchange.send_counts), _starts(exchange.recv_counts)
    _copy_own(exchange, sent_at, received_at)
    operations = []
    for op, buffer, starts, counts in (
        (dist.irecv, exchange.received, received_at, exchange.recv_counts),
        (dist.isend, exchange.rows, sent_at, exchange.send_counts),
    ):
        for peer, count in _leaving(counts, exchange.rank):
            for index in range(count):
                operations.append(Message(op, buffer[starts[peer] + index], peer, tag=index))
    for work in _start(operations, exchange.group, batched=batched):
        work.wait()


def _start(messages: Sequence[Message], group: dist.ProcessGroup | None, *, batched: bool) -> list[dist.Work]:
    """Posts all messages. ``batched``: the backend must be told of them at once, or it may wait on one for another."""
    if batched and messages:
        return dist.batch_isend_irecv([
            dist.P2POp(message.operation, message.rows, group_peer=message.peer, group=group, tag=message.tag)
            for message in messages
        ])  # fmt: skip
    return [
        message.operation(message.rows, group=group, tag=message.tag, **{PEER[message.operation]: message.peer})
        for message in messages
    ]


def _copy_own(exchange: Exchange, sent_at: list[int], received_at: list[int]) -> None:
    rank, own = exchange.rank, exchange.send_counts[exchange.rank]
    if own:
        kept = exchange.rows[sent_at[rank] : sent_at[rank] + own]
        exchange.received[received_at[rank] : received_at[rank] + own] = kept


def _leaving(counts: list[int], rank: int) -> tuple[tuple[int, int], ...]:
    """(peer, rows) of what leaves the rank, nearest peer after it first, so that ranks do not all start with one."""
    world = len(counts)
    peers = [(rank + step) % world for step in range(1, world)]
    return tuple((peer, counts[peer]) for peer in peers if counts[peer])


def _starts(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts[:-1])]
