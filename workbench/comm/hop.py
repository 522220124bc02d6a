"""One exchange of a dispatch plan: who sends which rows to whom, how it is carried, and in which order.

R ranks, P pairs in flight. A hop is carried as
- ``all_to_all``: every rank to every rank at once, empty blocks included;
- ``all_gather``: one block of rows to several ranks, its send list that block over and over;
- ``point_to_point``: only blocks that hold rows, all at once or in rounds;
- ``per_row``: every row a message of its own.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Carrier = Literal["all_to_all", "all_gather", "point_to_point", "per_row"]
PADDING = -1


@dataclass(frozen=True)
class Round:
    """One step of a hop: rank r sends the next ``rows[r]`` of its rows for rank ``destination[r]``; int64 [R] both."""

    destination: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class Hop:
    """Rank r sends rows ``send_rows[r]`` of its buffer, ``send_counts[r, d]`` of them to rank d.

    Rows are grouped by destination ascending; the next buffer is what arrives, grouped by source ascending. A row
    ``PADDING`` is zeros that stand for no token: nothing is computed for it and nothing comes back. ``rounds`` part
    what leaves its rank into steps that follow one another; what stays is copied besides. ``announced``: receivers
    know the counts beforehand.
    """

    name: str
    send_rows: tuple[np.ndarray, ...]
    send_counts: np.ndarray
    carrier: Carrier = "all_to_all"
    rounds: tuple[Round, ...] = ()
    announced: bool = False

    def handed_over(self, rank: int) -> int:
        """Rows that ``rank`` hands to the carrier: of ``all_gather`` the block, else its send list."""
        if self.carrier == "all_gather":
            return int(self.send_counts[rank].max())
        return self.send_rows[rank].size

    def trace(self, ranks: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where received rows came from: source rank, index in its send list, row in its buffer before the hop."""
        num_ranks = self.send_counts.shape[0]
        ends = np.cumsum(self.send_counts.T.ravel())
        received = self.send_counts.sum(axis=0)
        position = (np.cumsum(received) - received)[ranks] + rows
        block = np.searchsorted(ends, position, side="right")
        source = block % num_ranks
        into_block = position - (ends[block] - self.send_counts[source, ranks])
        index = before(self.send_counts)[source, ranks] + into_block
        starts = np.cumsum([0, *(part.size for part in self.send_rows)])
        prior = np.concatenate(self.send_rows)[starts[source] + index] if rows.size else rows
        return source, index, prior

    def messages(self) -> np.ndarray:
        """Messages from row to column, int64 [R, R]; none to itself."""
        if self.carrier == "per_row":
            messages = self.send_counts.copy()
        elif self.rounds:
            messages = np.zeros_like(self.send_counts)
            for step in self.rounds:
                sending = np.flatnonzero(step.rows > 0)
                np.add.at(messages, (sending, step.destination[sending]), 1)
        else:
            messages = (self.send_counts > 0).astype(np.int64)
        np.fill_diagonal(messages, 0)
        return messages

    def round_counts(self) -> list[np.ndarray]:
        """Rows from row to column in each step, int64 [R, R], without those that stay; one step if not in rounds."""
        if not self.rounds:
            counts = self.send_counts.copy()
            np.fill_diagonal(counts, 0)
            return [counts]
        steps = []
        for step in self.rounds:
            counts = np.zeros_like(self.send_counts)
            np.add.at(counts, (np.arange(len(step.rows)), np.maximum(step.destination, 0)), step.rows)
            steps.append(counts)
        return steps


@dataclass(frozen=True)
class Pairs:
    """(Token, slot) pairs in flight: global slot, weight, and where the row they read is now (rank, row)."""

    rank: np.ndarray
    row: np.ndarray
    slot: np.ndarray
    weight: np.ndarray


def pairs_of(slots: np.ndarray, weights: np.ndarray) -> tuple[Pairs, np.ndarray]:
    """Pairs at home from slots int32 [R, T, K] (-1 = dropped) and weights; beside them each pair's k."""
    rank, row, column = np.nonzero(slots >= 0)
    kept = (rank, row, column)
    return Pairs(rank, row, slots[kept].astype(np.int64), np.asarray(weights, np.float32)[kept]), column


def forward(
    pairs: Pairs, destination: np.ndarray, *, name: str, num_ranks: int, share: bool, carrier: Carrier = "all_to_all"
) -> tuple[Hop, Pairs, np.ndarray]:
    """Moves every pair's row to ``destination`` [P]; returns the hop, the pairs after it, and each pair's sent row.

    ``share``: pairs that read one row and go to one rank share a copy (rows ascending). Otherwise each pair gets its
    own copy, ordered by slot. Sent rows are numbered over all ranks' send lists in order.
    """
    link = pairs.rank * num_ranks + destination
    if share:
        first, sent = _shared_rows(link, pairs.row)
    else:
        span = int(pairs.slot.max(initial=0)) + 1
        first = np.argsort(link * span + pairs.slot, kind="stable")
        sent = np.empty(first.size, np.int64)
        sent[first] = np.arange(first.size)
    hop, landed = exchange(link[first], pairs.row[first], name=name, num_ranks=num_ranks, carrier=carrier)
    return hop, Pairs(destination, landed[sent], pairs.slot, pairs.weight), sent


def exchange(
    link: np.ndarray, rows: np.ndarray, *, name: str, num_ranks: int, carrier: Carrier = "all_to_all"
) -> tuple[Hop, np.ndarray]:
    """The hop of sent rows, given their link (source * R + destination, ascending), and where each row lands."""
    counts = np.bincount(link, minlength=num_ranks * num_ranks).reshape(num_ranks, num_ranks)
    into_block = np.arange(link.size) - (np.cumsum(counts) - counts.ravel())[link]
    landed = before(counts.T).T.ravel()[link] + into_block
    ends = np.cumsum(counts.sum(axis=1))[:-1]
    return Hop(name, tuple(np.split(rows, ends)), counts, carrier), landed


def before(counts: np.ndarray) -> np.ndarray:
    """Sum of what stands before, along each row."""
    return np.cumsum(counts, axis=1) - counts


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
