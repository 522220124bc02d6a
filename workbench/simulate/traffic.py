"""What a layer's routed tokens ask of each rank, counted from sampled routing and the dispatch plan that would run.

R ranks, E experts, S slots (experts held) a rank. Routing a whole large group costs more than pricing it, so tokens
are sampled up to a budget and the counts scaled up; GroupTraffic says by how much.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from workbench.balance.dynamics import reached
from workbench.balance.history import placed_before
from workbench.comm.strategies import make_plan
from workbench.simulate.loads import HopLoad, plan_loads
from workbench.simulate.sampling import full_counts
from workbench.spec.scenario import Cell
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
    the rows it holds after the last hop. ``expert_tokens_E`` counts pairs by logical expert over all ranks.
    """

    num_ranks: int
    sampled_tokens: int
    scale: float
    pairs_R: np.ndarray
    touched_R: np.ndarray
    buffer_rows_R: np.ndarray
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
    plan = make_plan(cell, traffic, placed_before(cell, layer=layer))
    slots_RS = plan.slot_loads()
    sampled = traffic.ids.shape[1]
    routed = int(traffic.tokens_R.sum())
    scale = float(source_tokens(cell).sum() / routed) if routed else 1.0
    node_R = plan.topology.node_of
    hops = plan_loads(plan.hops, node_R=node_R, scale=scale)
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
        expert_tokens_E=expert_tokens_E,
        touched_experts=int((loads_E > 0).sum()),
        dropped_pairs=float(traffic.dropped_R.sum() * scale),
        hops=hops,
        node_R=node_R,
    )
