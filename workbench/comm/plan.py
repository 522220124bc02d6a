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

from workbench.comm.hop import Hop, Pairs
from workbench.comm.topology import Link, Topology


@dataclass(frozen=True)
class Arrivals:
    """What one rank's experts get: buffer row int64 [P], local slot int32 [P], weight float32 [P], by (row, slot)."""

    rows: np.ndarray
    slots: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Carried:
    """Routing that travels with the rows of the first hop: pair p rides on row ``row[p]`` in column ``column[p]``.

    ``row`` counts the rows that the ranks hand over, rank by rank; a row has ``width`` columns.
    """

    row: np.ndarray
    column: np.ndarray
    slot: np.ndarray
    weight: np.ndarray
    width: int


@dataclass(frozen=True)
class DispatchPlan:
    """A strategy's plan. ``pairs`` are the pairs after the last hop; ``tokens_R`` says how many tokens a rank has."""

    strategy: str
    topology: Topology
    tokens_R: tuple[int, ...]
    slots_per_rank: int
    hops: tuple[Hop, ...]
    pairs: Pairs = field(repr=False)
    carried: Carried | None = field(default=None, repr=False)

    @property
    def num_ranks(self) -> int:
        return self.topology.num_ranks

    def num_rows(self, rank: int) -> int:
        """Rows of a rank's last buffer."""
        return int(self.hops[-1].send_counts[:, rank].sum()) if self.hops else self.tokens_R[rank]

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
        diagonal of messages is zero.
        """
        return [(hop.name, hop.send_counts * row_bytes, hop.messages()) for hop in self.hops]

    def combine_traffic(self, row_bytes: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """The way back: the same hops in reverse order, every count transposed."""
        return [(hop.name, hop.send_counts.T * row_bytes, hop.messages().T) for hop in reversed(self.hops)]


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
