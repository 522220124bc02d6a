"""Placement of experts and their replicas on ranks. E experts, R ranks, S slots a rank (R * S = E + redundant).

A slot is numbered rank * S + s over the whole group.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workbench.balance.nodes import ranks_per_node
from workbench.balance.packing import pack, replicate
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.loads import slot_counts
from workbench.workload.traffic import RoutedTraffic, cell_router


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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a placement kind may read; ``loads`` [E] are tokens per expert."""

    num_experts: int
    num_ranks: int
    redundant: int
    loads: np.ndarray | None
    num_nodes: int
    num_groups: int


def place(
    num_experts: int,
    num_ranks: int,
    *,
    kind: str,
    redundant: int = 0,
    loads: np.ndarray | None = None,
    num_nodes: int = 1,
    num_groups: int = 1,
) -> ExpertMap:
    """Experts on ranks by ``kind``; greedy and eplb need ``loads``, eplb looks at nodes and router groups too.

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
    if loads is None and kind in ("greedy", "eplb"):
        raise ValueError(f"balance.placement: {kind} needs the tokens per expert (loads)")
    if loads is not None and len(loads) != num_experts:
        raise ValueError(f"loads: {len(loads)} values for {num_experts} experts")
    request = Request(
        num_experts=num_experts,
        num_ranks=num_ranks,
        redundant=redundant,
        loads=None if loads is None else np.asarray(loads, float),
        num_nodes=num_nodes,
        num_groups=num_groups,
    )
    return ExpertMap(np.ascontiguousarray(PLACEMENTS[kind](request), dtype=np.int32))


def expert_map_of(cell: Cell, traffic: RoutedTraffic) -> ExpertMap:
    """The cell's placement. Kinds that read loads get those of ``traffic`` itself: the best case, no forecast error."""
    placement = cell.balance.placement
    return place(
        cell.model.num_experts,
        cell.ep,
        kind=placement.kind,
        redundant=placement.redundant_experts,
        loads=slot_counts(traffic.ids, cell.model.num_experts),
        num_nodes=-(-cell.ep // ranks_per_node(cell)),
        num_groups=getattr(cell_router(cell), "num_groups", 1),
    )


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


def _linear(request: Request) -> np.ndarray:
    replicas = np.arange(request.redundant) % request.num_experts
    return np.concatenate([np.arange(request.num_experts), replicas]).reshape(request.num_ranks, -1)


def _round_robin(request: Request) -> np.ndarray:
    """Replicas are shifted by half the ranks away from their originals."""
    experts, ranks = request.num_experts, request.num_ranks
    replicas = (np.arange(request.redundant) + (experts + ranks // 2) % ranks) % experts
    return np.concatenate([np.arange(experts), replicas]).reshape(-1, ranks).T


def _greedy(request: Request) -> np.ndarray:
    """Replicas to the most loaded experts, then the heaviest slot to the least loaded rank with room."""
    experts, share = replicate(request.loads, request.num_experts + request.redundant)
    rank_of = pack(share, request.num_ranks, labels=experts)
    return experts[np.argsort(rank_of, kind="stable")].reshape(request.num_ranks, -1)


def _eplb(request: Request) -> np.ndarray:
    """DeepSeek's expert-parallel load balancer: router groups to nodes, then replicas and packing inside each node.

    Falls back to all ranks as one node when groups or ranks do not divide by the nodes, or when one node has no
    group to itself.
    """
    nodes, groups, experts = request.num_nodes, request.num_groups, request.num_experts
    if nodes == 1 or groups % nodes or request.num_ranks % nodes or experts % groups:
        return _greedy(request)
    node_of_group = pack(request.loads.reshape(groups, -1).sum(axis=1), nodes)
    node_of_expert = np.repeat(node_of_group, experts // groups)
    ranks = request.num_ranks // nodes
    parts = []
    for node in range(nodes):
        members = np.flatnonzero(node_of_expert == node)
        inside = replace(
            request, num_experts=members.size, num_ranks=ranks, redundant=request.redundant // nodes,
            loads=request.loads[members],
        )  # fmt: skip
        parts.append(members[_greedy(inside)])
    return np.concatenate(parts)


PLACEMENTS: dict[str, Callable[[Request], np.ndarray]] = {
    "linear": _linear,
    "round_robin": _round_robin,
    "greedy": _greedy,
    "eplb": _eplb,
}
