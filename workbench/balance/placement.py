"""Placement of experts and their replicas on ranks. E experts, R ranks, S slots a rank (R * S = E + redundant).

A slot is numbered rank * S + s over the whole group. ``history`` says which steps place and which judge.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from workbench.balance.copies import packable_copies
from workbench.balance.dealing import to_slots
from workbench.balance.expert_map import ExpertMap
from workbench.balance.nodes import ranks_per_node
from workbench.balance.packing import pack, replicate
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.loads import slot_counts
from workbench.workload.traffic import RoutedTraffic, cell_router

__all__ = ["PLACEMENTS", "READ_LOADS", "ExpertMap", "eplb_scheme", "expert_map_of", "place", "place_cell", "to_slots"]

READ_LOADS = ("greedy", "eplb", "lp")
"""Kinds that need the tokens per expert."""


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
    """Experts on ranks by ``kind``; greedy, eplb and lp need ``loads``, the last two look at nodes and router groups.

    ``lp`` lies as ``eplb`` and splits each expert's tokens by a linear program instead of evenly (see ``split``).

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
    if loads is None and kind in READ_LOADS:
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
    slots = np.ascontiguousarray(PLACEMENTS[kind](request), dtype=np.int32)
    scheme = None
    if kind in ("eplb", "lp"):
        scheme = eplb_scheme(num_experts, num_ranks, num_nodes=num_nodes, num_groups=num_groups)
    return ExpertMap(slots, split="lp" if kind == "lp" else "even", scheme=scheme)


def expert_map_of(cell: Cell, traffic: RoutedTraffic) -> ExpertMap:
    """The cell's placement with the loads of ``traffic``: judged on the same traffic it is the best case, without any
    forecast error. Cells are placed by ``history.placed_before`` instead."""
    return place_cell(cell, slot_counts(traffic.ids, cell.model.num_experts))


def place_cell(cell: Cell, loads: np.ndarray | None) -> ExpertMap:
    """The cell's kind, redundancy, nodes and router groups with tokens per expert [E], None where it reads none."""
    placement = cell.balance.placement
    return place(
        cell.model.num_experts,
        cell.ep,
        kind=placement.kind,
        redundant=placement.redundant_experts,
        loads=loads,
        num_nodes=-(-cell.ep // ranks_per_node(cell)),
        num_groups=getattr(cell_router(cell), "num_groups", 1),
    )


def eplb_scheme(
    num_experts: int, num_ranks: int, *, num_nodes: int, num_groups: int
) -> Literal["hierarchical", "global"]:
    """Which way ``eplb`` goes: hierarchical where every node gets as many whole router groups and as many ranks."""
    divides = not (num_groups % num_nodes or num_ranks % num_nodes or num_experts % num_groups)
    return "hierarchical" if num_nodes > 1 and divides else "global"


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
    experts, share = replicate(request.loads, request.num_experts + request.redundant, num_ranks=request.num_ranks)
    return _packed(experts, share, request.num_ranks)


def _packed(experts: np.ndarray, share: np.ndarray, num_ranks: int) -> np.ndarray:
    """Expert of every slot [R, S] from experts and loads of the slots [R * S]."""
    rank_of = pack(share, num_ranks, labels=experts)
    return experts[np.argsort(rank_of, kind="stable")].reshape(num_ranks, -1)


def _eplb(request: Request) -> np.ndarray:
    """DeepSeek's expert-parallel load balancer: router groups to nodes, then replicas and packing inside each node.

    All ranks are one node where ``eplb_scheme`` is global. Beyond the original, which is ``greedy`` there and leaves
    the fullest of 32 ranks about 10% above the mean under a steep power law, copies are moved between experts until
    they pack well (``copies``).
    """
    nodes, groups, experts = request.num_nodes, request.num_groups, request.num_experts
    if eplb_scheme(experts, request.num_ranks, num_nodes=nodes, num_groups=groups) == "global":
        return _searched(request)
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
        parts.append(members[_searched(inside)])
    return np.concatenate(parts)


def _searched(request: Request) -> np.ndarray:
    """``_greedy``, or where that leaves the fullest rank lighter the same with ``packable_copies``."""
    loads, ranks = request.loads, request.num_ranks
    plain_RS = _greedy(request)
    copies = np.bincount(plain_RS.ravel())
    chosen = packable_copies(loads, copies, ranks)
    if (chosen == copies).all():
        return plain_RS
    experts = np.repeat(np.arange(loads.size), chosen)
    searched_RS = _packed(experts, (loads / chosen)[experts], ranks)
    fullest = [(loads / count)[slots].sum(axis=1).max() for slots, count in ((plain_RS, copies), (searched_RS, chosen))]
    return searched_RS if fullest[1] < fullest[0] else plain_RS


PLACEMENTS: dict[str, Callable[[Request], np.ndarray]] = {
    "linear": _linear,
    "round_robin": _round_robin,
    "greedy": _greedy,
    "eplb": _eplb,
    "lp": _eplb,
}
