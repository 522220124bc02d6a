"""Placement of experts and their replicas on ranks. E experts, R ranks, S slots a rank (R * S = E + redundant).

A slot is numbered rank * S + s over the whole group.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.balance.packing import pack, replicate
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.loads import slot_counts
from workbench.workload.traffic import RoutedTraffic


@dataclass(frozen=True)
class ExpertMap:
    """``slots`` int32 [R, S]: the expert in every slot. Every expert has at least one."""

    slots: np.ndarray

    @property
    def num_ranks(self) -> int:
        return self.slots.shape[0]

    @property
    def slots_per_rank(self) -> int:
        return self.slots.shape[1]


def place(
    num_experts: int, num_ranks: int, *, kind: str, redundant: int = 0, loads: np.ndarray | None = None
) -> ExpertMap:
    """Experts on ranks by ``kind``; ``loads`` [E] tokens per expert, which greedy needs.

    Raises ValueError when the slots do not divide by the ranks or loads are missing, Unsupported for other kinds.
    """
    if (num_experts + redundant) % num_ranks:
        least = -num_experts % num_ranks
        raise ValueError(
            f"balance.placement.redundant_experts: {num_experts} experts + {redundant} do not divide by {num_ranks}"
            f" ranks; the smallest number that does is {least}"
        )
    if kind not in PLACEMENTS:
        raise Unsupported(f"balance.placement: kind {kind} is not there yet; known: {', '.join(PLACEMENTS)}")
    if loads is not None and len(loads) != num_experts:
        raise ValueError(f"loads: {len(loads)} values for {num_experts} experts")
    slots = PLACEMENTS[kind](num_experts, num_ranks, redundant, loads)
    return ExpertMap(np.ascontiguousarray(slots, dtype=np.int32))


def expert_map_of(cell: Cell, traffic: RoutedTraffic) -> ExpertMap:
    """The cell's placement. Kinds that read loads get those of ``traffic`` itself: the best case, no forecast error."""
    loads = slot_counts(traffic.ids, cell.model.num_experts)
    kind, redundant = cell.balance.placement.kind, cell.balance.placement.redundant_experts
    return place(cell.model.num_experts, cell.ep, kind=kind, redundant=redundant, loads=loads)


def to_slots(expert_map: ExpertMap, ids: np.ndarray) -> np.ndarray:
    """Global slot ids of expert ids [R, T, K], int32 of the same shape; -1 stays -1.

    The pairs of one source rank that chose an expert are dealt over its replicas in turn, starting at replica
    ``rank mod copies``, so that replicas share the load to within one pair a source rank.
    """
    first, copies, table = _replicas(expert_map)
    safe = np.where(ids >= 0, ids, 0)
    slots = first[safe]
    shared = (copies[safe] > 1) & (ids >= 0)
    if shared.any():
        expert = ids[shared].astype(np.int64)
        source = np.nonzero(shared)[0]
        turn = (_turns(source * copies.size + expert) + source) % copies[expert]
        slots[shared] = table[expert, turn]
    return np.where(ids >= 0, slots, np.int32(-1))


def _replicas(expert_map: ExpertMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First slot [E], number of copies [E], and slots of each copy [E, max copies] (padded with the first)."""
    flat = expert_map.slots.ravel()
    order = np.argsort(flat, kind="stable")
    copies = np.bincount(flat)
    starts = np.cumsum(copies) - copies
    column = np.arange(copies.max())
    table = order[starts[:, None] + np.where(column < copies[:, None], column, 0)].astype(np.int32)
    return table[:, 0], copies, table


def _turns(keys: np.ndarray) -> np.ndarray:
    """How many equal keys stand before each one."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    turns = np.empty(keys.size, np.int64)
    turns[order] = np.arange(keys.size) - np.searchsorted(ordered, ordered)
    return turns


def _spread(num_experts: int, num_ranks: int, redundant: int) -> np.ndarray:
    """Experts of the slots in reading order: all once, then replicas shifted away from their originals' ranks."""
    shift = (num_experts + num_ranks // 2) % num_ranks
    return np.concatenate([np.arange(num_experts), (np.arange(redundant) + shift) % num_experts])


def _linear(num_experts: int, num_ranks: int, redundant: int, loads: np.ndarray | None) -> np.ndarray:
    replicas = np.arange(redundant) % num_experts
    return np.concatenate([np.arange(num_experts), replicas]).reshape(num_ranks, -1)


def _round_robin(num_experts: int, num_ranks: int, redundant: int, loads: np.ndarray | None) -> np.ndarray:
    return _spread(num_experts, num_ranks, redundant).reshape(-1, num_ranks).T


def _greedy(num_experts: int, num_ranks: int, redundant: int, loads: np.ndarray | None) -> np.ndarray:
    """Replicas to the most loaded experts, then the heaviest slot to the least loaded rank with room."""
    if loads is None:
        raise ValueError("balance.placement: greedy needs the tokens per expert (loads)")
    experts, share = replicate(np.asarray(loads, float), num_experts + redundant)
    rank_of = pack(share, num_ranks, labels=experts)
    return experts[np.argsort(rank_of, kind="stable")].reshape(num_ranks, -1)


PLACEMENTS: dict[str, Callable[[int, int, int, np.ndarray | None], np.ndarray]] = {
    "linear": _linear,
    "round_robin": _round_robin,
    "greedy": _greedy,
}
