"""What a layer's routed tokens ask of each rank, counted from sampled routing and the dispatch plan that would run.

R ranks, E experts, S slots (experts held) a rank. Routing a whole large group costs more than pricing it, so tokens
are sampled up to a budget and the counts scaled up; GroupTraffic says by how much.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import ceil

import numpy as np

from workbench.balance.dynamics import reached
from workbench.balance.history import placed_before
from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies import make_plan
from workbench.simulate.aggregate import aggregate
from workbench.simulate.loads import HopLoad, plan_loads
from workbench.simulate.sampling import full_counts
from workbench.spec.scenario import Cell
from workbench.workload.capacity import slot_limit
from workbench.workload.loads import slot_counts
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import RoutedTraffic, route_all

MAX_COUNTED_RANKS = 512
"""Of a group that is counted rank by rank; a larger one is counted by port (``aggregate``)."""
MAX_SAMPLED_TOKENS = 32_768
MAX_SAMPLED_LOGITS = 1_048_576
CACHE_SIZE = 256


@dataclass(frozen=True)
class GroupTraffic:
    """Counts of one layer and step over the expert-parallel group, scaled to the full batch (hence float64).

    ``tokens_R`` are the tokens of each rank that are counted: all of them, or those of a part that travels by itself.
    ``pairs_R`` are (token, expert) pairs computed by each rank, ``touched_R`` its slots with any, ``buffer_rows_R``
    the rows it holds after the last hop and ``used_rows_R`` those of them that an expert here reads: not padding, nor
    what an all-gather brings for others. ``expert_tokens_E`` counts pairs by logical expert over all ranks.
    """

    num_ranks: int
    tokens_R: np.ndarray
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


def part_traffics(cell: Cell, *, layer: int = 0, step: int = 0) -> tuple[GroupTraffic, ...]:
    """Counts of each part of the tokens that ``dispatch.overlap`` lets travel by itself, in order; of all if of one.

    Parts are equal to within a token and no more than the fullest rank has tokens.
    """
    if num_parts(cell) == 1:
        return (group_traffic(cell, layer=layer, step=step),)
    return _cached_parts(_Query(_key(cell), layer, step, cell))


def num_parts(cell: Cell) -> int:
    """Parts that the tokens travel in."""
    return max(1, min(cell.dispatch.overlap.parts, int(source_tokens(cell).max(initial=0))))


@lru_cache(maxsize=CACHE_SIZE)
def _cached(query: _Query) -> GroupTraffic:
    if query.cell.ep > MAX_COUNTED_RANKS:
        return _aggregated(query)
    return count_traffic(query.cell, _routed(query), layer=query.layer)


def _aggregated(query: _Query, *, parts: int = 1) -> GroupTraffic:
    """Counts by port; of one of ``parts`` equal parts of the tokens."""
    found = aggregate(query.cell, layer=query.layer, step=query.step, parts=parts)
    last = found.hops[-1].received_R if found.hops else found.tokens_R
    return GroupTraffic(
        num_ranks=query.cell.ep,
        tokens_R=found.tokens_R,
        sampled_tokens=found.sampled,
        scale=found.scale,
        pairs_R=found.pairs_R,
        touched_R=found.touched_R,
        buffer_rows_R=last,
        used_rows_R=last,
        expert_tokens_E=found.expert_tokens_E,
        touched_experts=found.touched_experts,
        dropped_pairs=found.dropped_pairs,
        hops=found.hops,
        node_R=found.node_R,
    )


def _routed(query: _Query) -> RoutedTraffic:
    cell = query.cell
    return route_all(
        cell, layer=query.layer, step=query.step, max_tokens=sampled_tokens_per_rank(cell),
        steer=reached(cell, layer=query.layer),
    )  # fmt: skip


@lru_cache(maxsize=CACHE_SIZE)
def _cached_parts(query: _Query) -> tuple[GroupTraffic, ...]:
    """Of a whole batch the very tokens of each part; of a sample its first tokens, no more than a part has, for all."""
    cell, count = query.cell, num_parts(query.cell)
    if cell.ep > MAX_COUNTED_RANKS:
        return (_aggregated(query, parts=count),) * count
    traffic, expert_map = _routed(query), placed_before(query.cell, layer=query.layer)
    sampled = scale_of(source_tokens(cell), traffic) != 1.0
    slots_RTK, held_R = deal(expert_map, traffic.ids, sampled=sampled), traffic.tokens_R
    if not sampled:
        edges = [held_R * number // count for number in range(count + 1)]
        cuts = [_cut(traffic, slots_RTK, *pair) for pair in pairwise(edges)]
        return tuple(_counted(cell, part, expert_map, slots, part.tokens_R) for part, slots in cuts)
    tokens_R = source_tokens(cell) / count
    part, slots = _cut(traffic, slots_RTK, 0 * held_R, np.minimum(held_R, np.ceil(tokens_R).astype(np.int64)))
    return (_counted(cell, part, expert_map, slots, tokens_R),) * count


def _cut(
    traffic: RoutedTraffic, slots_RTK: np.ndarray, starts_R: np.ndarray, ends_R: np.ndarray
) -> tuple[RoutedTraffic, np.ndarray]:
    """Tokens ``starts_R[r]`` to ``ends_R[r]`` of every rank r, moved to the front, and their slots."""
    sizes_R = ends_R - starts_R
    token_RT = starts_R[:, None] + np.arange(int(sizes_R.max(initial=0)))[None, :]
    outside_RT1 = (token_RT >= ends_R[:, None])[..., None]
    index = (np.arange(sizes_R.size)[:, None], np.minimum(token_RT, traffic.ids.shape[1] - 1))
    ids, weights, slots = (
        np.where(outside_RT1, array.dtype.type(fill), array[index])
        for array, fill in ((traffic.ids, -1), (traffic.weights, 0), (slots_RTK, -1))
    )
    return RoutedTraffic(ids, weights, traffic.chosen_by_experts, sizes_R), slots


def count_traffic(cell: Cell, traffic: RoutedTraffic, *, layer: int = 0) -> GroupTraffic:
    """Counts of one routed batch: placement and strategy of the cell applied to ``traffic`` (ids [R, T, K])."""
    expert_map, tokens_R = placed_before(cell, layer=layer), source_tokens(cell)
    slots_RTK = deal(expert_map, traffic.ids, sampled=scale_of(tokens_R, traffic) != 1.0)
    return _counted(cell, traffic, expert_map, slots_RTK, tokens_R)


def _counted(
    cell: Cell, traffic: RoutedTraffic, expert_map: ExpertMap, slots_RTK: np.ndarray, tokens_R: np.ndarray
) -> GroupTraffic:
    assert cell.model is not None
    plan, scale = make_plan(cell, traffic, expert_map, slots=slots_RTK), scale_of(tokens_R, traffic)
    slots_RS, node_R = plan.slot_loads(), plan.topology.node_of
    grown = scale
    if scale != 1.0 and plan.strategy == "flat_padded":
        grown = _padded_growth(cell, plan, slots_RTK, scale=scale, most_tokens=ceil(tokens_R.max()))
    hops = plan_loads(plan.hops, node_R=node_R, scale=grown)
    loads_E = slot_counts(traffic.ids, cell.model.num_experts)
    return GroupTraffic(
        num_ranks=cell.ep,
        tokens_R=tokens_R.astype(np.float64),
        sampled_tokens=traffic.ids.shape[1],
        scale=scale,
        pairs_R=full_counts(slots_RS.sum(axis=1), scale=scale),
        touched_R=(slots_RS > 0).sum(axis=1).astype(np.float64),
        buffer_rows_R=hops[-1].received_R if hops else tokens_R.astype(np.float64),
        used_rows_R=full_counts(_used_rows(plan), scale=scale),
        expert_tokens_E=full_counts(loads_E, scale=scale),
        touched_experts=int((loads_E > 0).sum()),
        dropped_pairs=float(traffic.dropped_R.sum() * scale),
        hops=hops,
        node_R=node_R,
    )


def scale_of(tokens_R: np.ndarray, traffic: RoutedTraffic) -> float:
    """Tokens for each one that was routed; 1 where none was."""
    routed = int(traffic.tokens_R.sum())
    return float(tokens_R.sum() / routed) if routed else 1.0


def deal(expert_map: ExpertMap, ids_RTK: np.ndarray, *, sampled: bool) -> np.ndarray:
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


def _padded_growth(cell: Cell, plan: DispatchPlan, slots_RTK: np.ndarray, *, scale: float, most_tokens: int) -> float:
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
        fullest = slot_limit(num_tokens=most_tokens, **rule)
    return max(1.0, fullest * plan.slots_per_rank / max(1, int(plan.hops[0].send_counts.max())))
