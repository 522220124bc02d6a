"""Dispatch plans: who sends which rows to whom, hop by hop, and what reaches the experts.

R ranks, T tokens a rank, K top-k, S slots a rank. The transport executes a plan and the network model prices it.

Bytes, always totals over all ranks of one direction:
- logical: one payload for every (token, expert) pair that was not dropped, wherever the expert lives: what
  DeepEP's low-latency benchmark calls its bytes, and the same for every strategy;
- physical: payloads of rows that leave their rank, over all hops: deduplication makes it less than logical,
  forwarding makes it more;
- wire: what send buffers to other ranks hold, payload with scales and metadata; counted from the buffers by a
  transport, from the same rows here.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from workbench.comm.topology import Link, Topology


@dataclass(frozen=True)
class Hop:
    """One exchange. Rank r sends rows ``send_rows[r]`` of its buffer, ``send_counts[r, d]`` of them to rank d.

    Rows are grouped by destination ascending; the next buffer is what arrives, grouped by source ascending.
    """

    name: str
    send_rows: tuple[np.ndarray, ...]
    send_counts: np.ndarray

    def trace(self, ranks: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where received rows came from: source rank, index in its send list, row in its buffer before the hop."""
        num_ranks = self.send_counts.shape[0]
        ends = np.cumsum(self.send_counts.T.ravel())
        received = self.send_counts.sum(axis=0)
        position = (np.cumsum(received) - received)[ranks] + rows
        block = np.searchsorted(ends, position, side="right")
        source = block % num_ranks
        into_block = position - (ends[block] - self.send_counts[source, ranks])
        index = _exclusive(self.send_counts)[source, ranks] + into_block
        starts = np.cumsum([0, *(part.size for part in self.send_rows)])
        prior = np.concatenate(self.send_rows)[starts[source] + index] if rows.size else rows
        return source, index, prior


@dataclass(frozen=True)
class Arrivals:
    """What one rank's experts get: buffer row int64 [P], local slot int32 [P], weight float32 [P], by (row, slot)."""

    rows: np.ndarray
    slots: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Carried:
    """Routing that travels with the rows of the first hop: pair p rides on row ``row[p]`` in column ``column[p]``.

    ``row`` counts the rows of all ranks' send lists in order; a row has ``width`` columns.
    """

    row: np.ndarray
    column: np.ndarray
    slot: np.ndarray
    weight: np.ndarray
    width: int


@dataclass(frozen=True)
class Pairs:
    """(Token, slot) pairs in flight: global slot, weight, and where the row they read is now (rank, row)."""

    rank: np.ndarray
    row: np.ndarray
    slot: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class DispatchPlan:
    """A strategy's plan. ``pairs`` are the pairs after the last hop; ``num_tokens`` is T of every rank."""

    strategy: str
    topology: Topology
    num_tokens: int
    slots_per_rank: int
    hops: tuple[Hop, ...]
    pairs: Pairs = field(repr=False)
    carried: Carried | None = field(default=None, repr=False)

    @property
    def num_ranks(self) -> int:
        return self.topology.num_ranks

    def num_rows(self, rank: int) -> int:
        """Rows of a rank's last buffer."""
        return int(self.hops[-1].send_counts[:, rank].sum()) if self.hops else self.num_tokens

    @cached_property
    def arrivals(self) -> tuple[Arrivals, ...]:
        """Arrivals of every rank."""
        pairs, slots = self.pairs, self.slots_per_rank
        span = int(pairs.row.max(initial=0)) + 1
        order = np.argsort((pairs.rank * span + pairs.row) * slots + pairs.slot % slots, kind="stable")
        ends = np.cumsum(np.bincount(pairs.rank, minlength=self.num_ranks))[:-1]
        rows = np.split(pairs.row[order], ends)
        local = np.split((pairs.slot[order] % slots).astype(np.int32), ends)
        weights = np.split(pairs.weight[order], ends)
        return tuple(map(Arrivals, rows, local, weights))

    def slot_loads(self) -> np.ndarray:
        """Pairs per slot, int64 [R, S]."""
        counts = np.bincount(self.pairs.slot, minlength=self.num_ranks * self.slots_per_rank)
        return counts.reshape(self.num_ranks, self.slots_per_rank)

    def traffic(self, row_bytes: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Dispatch as (hop name, bytes int64 [R, R] from row to column, messages int64 [R, R]).

        ``row_bytes`` is payload with metadata (``comm.payload``). The diagonal of bytes stays on its rank and the
        diagonal of messages is zero; a message is one non-empty block between two ranks.
        """
        return [(hop.name, hop.send_counts * row_bytes, _messages(hop.send_counts)) for hop in self.hops]

    def combine_traffic(self, row_bytes: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """The way back: the same hops in reverse order, every count transposed."""
        backward = [(hop.name, hop.send_counts.T) for hop in reversed(self.hops)]
        return [(name, counts * row_bytes, _messages(counts)) for name, counts in backward]


@dataclass(frozen=True)
class ByteCounts:
    """Bytes of the module docstring, of one direction."""

    logical: int
    physical: int
    wire: int
    scale_up: int
    scale_out: int


def byte_counts(plan: DispatchPlan, *, payload_bytes: int, row_bytes: int) -> ByteCounts:
    """Dispatch bytes of a plan; for combine pass the combine payload twice (nothing else travels back).

    ``scale_up`` and ``scale_out`` split ``wire`` by link class.
    """
    per_link: dict[Link, int] = dict.fromkeys(("self", "scale_up", "scale_out"), 0)
    for name, mask in plan.topology.link_masks().items():
        per_link[name] = sum(int(hop.send_counts[mask].sum()) for hop in plan.hops)
    leaving = per_link["scale_up"] + per_link["scale_out"]
    return ByteCounts(
        logical=plan.pairs.slot.size * payload_bytes,
        physical=leaving * payload_bytes,
        wire=leaving * row_bytes,
        scale_up=per_link["scale_up"] * row_bytes,
        scale_out=per_link["scale_out"] * row_bytes,
    )


def pairs_of(slots: np.ndarray, weights: np.ndarray) -> tuple[Pairs, np.ndarray]:
    """Pairs at home from slots int32 [R, T, K] (-1 = dropped) and weights; beside them each pair's k."""
    rank, row, column = np.nonzero(slots >= 0)
    kept = (rank, row, column)
    return Pairs(rank, row, slots[kept].astype(np.int64), np.asarray(weights, np.float32)[kept]), column


def forward(
    pairs: Pairs, destination: np.ndarray, *, name: str, num_ranks: int, share: bool
) -> tuple[Hop, Pairs, np.ndarray]:
    """Moves every pair's row to ``destination`` [P]; returns the hop, the pairs after it, and each pair's sent row.

    ``share``: pairs that read one row and go to one rank share a copy (rows ascending). Otherwise each pair gets its
    own copy, ordered by slot, so ``destination`` must not decrease with the slot. Sent rows are numbered over all
    ranks' send lists in order.
    """
    link = pairs.rank * num_ranks + destination
    if share:
        first, sent = _shared_rows(link, pairs.row)
    else:
        span = int(pairs.slot.max(initial=0)) + 1
        first = np.argsort(pairs.rank * span + pairs.slot, kind="stable")
        sent = np.empty(first.size, np.int64)
        sent[first] = np.arange(first.size)
    link, rows = link[first], pairs.row[first]
    hop, landed = _exchange(link, rows, name=name, num_ranks=num_ranks)
    return hop, Pairs(destination, landed[sent], pairs.slot, pairs.weight), sent


def _shared_rows(link: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the distinct (link, row) in order: one pair of each, and the number of every pair.

    Marking a table of all possible rows takes a third of the time of sorting, where the table is not too sparse.
    """
    used = np.bincount(link) > 0
    span = int(row.max(initial=0)) + 1
    keys = (np.cumsum(used) - 1)[link] * span + row
    size = int(used.sum()) * span
    if size > 16 * row.size + 2**20:
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        return first, number
    marked = np.zeros(size, bool)
    marked[keys] = True
    number = (np.cumsum(marked, dtype=np.int32) - 1)[keys]
    first = np.empty(np.count_nonzero(marked), np.int64)
    first[number] = np.arange(row.size)
    return first, number


def _exchange(link: np.ndarray, rows: np.ndarray, *, name: str, num_ranks: int) -> tuple[Hop, np.ndarray]:
    """The hop of sent rows, given their link (source * R + destination, ascending), and where each row lands."""
    counts = np.bincount(link, minlength=num_ranks * num_ranks).reshape(num_ranks, num_ranks)
    into_block = np.arange(link.size) - (np.cumsum(counts) - counts.ravel())[link]
    landed = _exclusive(counts.T).T.ravel()[link] + into_block
    ends = np.cumsum(counts.sum(axis=1))[:-1]
    return Hop(name, tuple(np.split(rows, ends)), counts), landed


def _exclusive(counts: np.ndarray) -> np.ndarray:
    """Sum of what stands before, along each row."""
    return np.cumsum(counts, axis=1) - counts


def _messages(counts: np.ndarray) -> np.ndarray:
    messages = (counts > 0).astype(np.int64)
    np.fill_diagonal(messages, 0)
    return messages
