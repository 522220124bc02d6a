"""What a layer's routed tokens ask of each rank, counted from sampled routing and the dispatch plan that would run.

R ranks, E experts, S slots (experts held) a rank. Routing a whole large group costs more than pricing it, so tokens
are sampled up to a budget and the counts scaled up; GroupTraffic says by how much.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import numpy as np

from workbench.balance.dynamics import reached
from workbench.balance.history import placed_before
from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies import make_plan
from workbench.simulate.loads import HopLoad, plan_loads
from workbench.simulate.sampling import full_counts
from workbench.spec.scenario import Cell
from workbench.workload.capacity import slot_limit
from workbench.workload.loads import slot_counts
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import RoutedTraffic, route_all

MAX_SAMPLED_TOKENS = 32_768
MAX_SAMPLED_LOGITS = 1_048_576
CACHE_SIZE = 256


@dataclass(frozen=True)
class GroupTraffic:
    """Counts of one layer and step over the expert-parallel group, scaled to the full batch (hence float64).

    ``pairs_R`` are (token, expert) pairs computed by each rank, ``touched_R`` its slots with any, ``buffer_rows_R``
    the rows it holds after the last hop and ``used_rows_R`` those of them that an expert here reads: not padding, nor
    what an all-gather brings for others. ``expert_tokens_E`` counts pairs by logical expert over all ranks.
    """

    num_ranks: int
    sampled_tokens: int
    scale: float
    pairs_R: np.ndarray
    touched_R: np.ndarray
    buffer_rows_R: np.ndarray
    used_rows_R: np.ndarray
    expert_tokens_E: np.ndarray
    touched_experts: int
    dropped_pairs: float
    hops: tuple[HopLoad, ...]
    node_R: np.ndarray


def sampled_tokens_per_rank(cell: Cell) -> int:
    """Tokens a rank whose routing is drawn: all of them, or as many as the budget allows (at least one)."""
    assert cell.model is not None
    tokens = min(MAX_SAMPLED_TOKENS // cell.ep, MAX_SAMPLED_LOGITS // (cell.ep * cell.model.num_experts))
    return min(cell.workload.tokens_per_rank, max(1, tokens))


def _key(cell: Cell) -> tuple:
    """Everything that the counts depend on: not precision, wire dtypes, peaks or rates."""
    workload, cluster = cell.workload, cell.cluster
    assert cell.model is not None
    return (
        cell.model.model_dump_json(exclude={"sources", "note", "attention"}),
        cell.router.model_dump_json(),
        workload.model_dump_json(exclude={"data", "layers"}),
        cell.balance.model_dump_json(),
        (cell.ep, cell.parallel.tp, cell.trace_digest, cell.dispatch.strategy),
        (cell.dispatch.pairing, cell.dispatch.levels, cell.dispatch.overlap.parts),
        (cluster.device, cluster.nodes, cluster.gpus_per_node, cluster.hardware.scale_up.domain),
    )


@dataclass(frozen=True)
class _Query:
    key: tuple
    layer: int
    step: int
    cell: Cell = field(compare=False)


def group_traffic(cell: Cell, *, layer: int = 0, step: int = 0) -> GroupTraffic:
    """Counts for one layer and step of a cell with a model; cached, since precisions and rates share them.

    Raises Unsupported for skews, routers, placements and strategies that do not exist yet.
    """
    return _cached(_Query(_key(cell), layer, step, cell))


@lru_cache(maxsize=CACHE_SIZE)
def _cached(query: _Query) -> GroupTraffic:
    cell = query.cell
    assert cell.model is not None
    traffic = route_all(
        cell, layer=query.layer, step=query.step, max_tokens=sampled_tokens_per_rank(cell),
        steer=reached(cell, layer=query.layer),
    )  # fmt: skip
    return count_traffic(cell, traffic, layer=query.layer)


def count_traffic(cell: Cell, traffic: RoutedTraffic, *, layer: int = 0) -> GroupTraffic:
    """Counts of one routed batch: placement and strategy of the cell applied to ``traffic`` (ids [R, T, K])."""
    assert cell.model is not None
    expert_map, scale = placed_before(cell, layer=layer), scale_of(cell, traffic)
    slots_RTK = _deal(expert_map, traffic.ids, sampled=scale != 1.0)
    plan = make_plan(cell, traffic, expert_map, slots=slots_RTK)
    slots_RS = plan.slot_loads()
    sampled = traffic.ids.shape[1]
    node_R = plan.topology.node_of
    grown = scale if scale == 1.0 or plan.strategy != "flat_padded" else _padded_growth(cell, plan, slots_RTK, scale)
    hops = plan_loads(plan.hops, node_R=node_R, scale=grown)
    loads_E = slot_counts(traffic.ids, cell.model.num_experts)
    expert_tokens_E = full_counts(loads_E, scale=scale)
    rows_R = hops[-1].received_R if hops else source_tokens(cell).astype(np.float64)
    return GroupTraffic(
        num_ranks=cell.ep,
        sampled_tokens=sampled,
        scale=scale,
        pairs_R=full_counts(slots_RS.sum(axis=1), scale=scale),
        touched_R=(slots_RS > 0).sum(axis=1).astype(np.float64),
        buffer_rows_R=rows_R,
        used_rows_R=full_counts(_used_rows(plan), scale=scale),
        expert_tokens_E=expert_tokens_E,
        touched_experts=int((loads_E > 0).sum()),
        dropped_pairs=float(traffic.dropped_R.sum() * scale),
        hops=hops,
        node_R=node_R,
    )


def scale_of(cell: Cell, traffic: RoutedTraffic) -> float:
    """Tokens of the cell for each one that was routed; 1 where none was."""
    routed = int(traffic.tokens_R.sum())
    return float(source_tokens(cell).sum() / routed) if routed else 1.0


def _deal(expert_map: ExpertMap, ids_RTK: np.ndarray, *, sampled: bool) -> np.ndarray:
    """Slots of the pairs. Each source starts at a replica of its own, and the few pairs of a sample would not come
    round to the others, so a sample is dealt as one source."""
    if not sampled:
        return to_slots(expert_map, ids_RTK)
    return to_slots(expert_map, ids_RTK.reshape(1, -1, ids_RTK.shape[-1])).reshape(ids_RTK.shape)


def _used_rows(plan: DispatchPlan) -> np.ndarray:
    """Rows of each rank's last buffer that a pair reads, int64 [R]."""
    held_R = np.array([plan.num_rows(rank) for rank in range(plan.num_ranks)])
    starts_R = np.cumsum(held_R) - held_R
    used = np.zeros(int(held_R.sum()), bool)
    used[starts_R[plan.pairs.rank] + plan.pairs.row] = True
    before = np.concatenate([[0], np.cumsum(used)])
    return before[starts_R + held_R] - before[starts_R]


def _padded_growth(cell: Cell, plan: DispatchPlan, slots_RTK: np.ndarray, scale: float) -> float:
    """How much longer the equal blocks of the full batch are than the sample's.

    A block is as long as the fullest (source, slot), which a small sample overstates by far more than its mean; what
    is left of that is up to a fifth.
    """
    assert cell.model is not None
    slot_count = plan.num_ranks * plan.slots_per_rank
    rank, token, column = np.nonzero(slots_RTK >= 0)
    filled = np.bincount(rank * slot_count + slots_RTK[rank, token, column], minlength=plan.num_ranks * slot_count)
    fullest, capacity = ceil(full_counts(filled, scale=scale).max()), cell.balance.capacity
    if capacity is not None and capacity > 0:
        rule = {"num_experts": cell.model.num_experts, "top_k": slots_RTK.shape[2], "capacity_factor": capacity}
        fullest = slot_limit(num_tokens=int(source_tokens(cell).max()), **rule)
    return max(1.0, fullest * plan.slots_per_rank / max(1, int(plan.hops[0].send_counts.max())))
