"""Which steps place a cell's experts and which judge the placement.

A cell is judged on the steps 0 .. N - 1 of its workload (N = ``workload.steps``; those that are run or priced). Its
experts are placed once, with the loads of the ``HISTORY_STEPS`` steps N .. N + 3 of the same layer: other tokens of
the same popularity, never a step that judges. Steps behind the judged ones stand for those before them, because step 0
is the first that exists; every skew that moves at random (drift) looks the same in both directions of time, and a
rotating hot rank has moved on by then, as it would have before. A recording with no more than N steps repeats itself,
so there the judged steps place as well; ``placement_flags`` says so. With ``balance.training`` the last step judges,
and all are routed with what the steps before it have made of the router (``dynamics.reached``).
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from workbench.balance.dynamics import reached
from workbench.balance.nodes import ranks_per_node
from workbench.balance.placement import READ_LOADS, ExpertMap, eplb_scheme, place_cell
from workbench.spec.scenario import Cell
from workbench.spec.workload import Trace
from workbench.workload.loads import slot_counts
from workbench.workload.recording import recording_of
from workbench.workload.traffic import cell_router, route_all, route_some

HISTORY_STEPS = 4
MAX_ROUTED_RANKS = 512
"""Of more ranks a few are routed for all."""
_MAX_LOGITS = 1 << 19  # drawn for each of the steps; more tokens are sampled


def history_loads(cell: Cell, *, layer: int = 0) -> np.ndarray:
    """Tokens per expert, int64 [E], of the steps that place; of large batches a sample."""
    return _loads_of(cell, range(cell.workload.steps, cell.workload.steps + HISTORY_STEPS), layer)


def recent_loads(cell: Cell, *, layer: int = 0) -> np.ndarray:
    """As ``history_loads``, of the last judged steps: what a rebalance after them would place by."""
    return _loads_of(cell, range(max(0, cell.workload.steps - HISTORY_STEPS), cell.workload.steps), layer)


def _loads_of(cell: Cell, steps: range, layer: int) -> np.ndarray:
    tokens = _MAX_LOGITS // cell.model.num_experts
    loads, steer = np.zeros(cell.model.num_experts, np.int64), reached(cell, layer=layer)
    for step in steps:
        where = {"layer": layer, "step": step, "steer": steer}
        if cell.ep > MAX_ROUTED_RANKS:
            ids, _ = route_some(cell, max_tokens=tokens, **where)
        else:
            ids = route_all(cell, max_tokens=max(1, tokens // cell.ep), **where).ids
        loads += slot_counts(ids, loads.size)
    return loads


def placed_before(cell: Cell, *, layer: int = 0) -> ExpertMap:
    """The cell's placement of one layer; kinds that read loads get ``history_loads``. Cached: precisions, strategies
    and rates share it."""
    if cell.balance.placement.kind not in READ_LOADS:
        return place_cell(cell, None)
    key = (
        cell.model.model_dump_json(include={"num_experts", "top_k", "router"}), cell.router.model_dump_json(),
        cell.workload.model_dump_json(exclude={"data"}), cell.balance.model_dump_json(), cell.ep, cell.trace_digest,
        (ranks_per_node(cell), cell.parallel.tp, layer),
    )  # fmt: skip
    return _placed(_Query(key, layer, cell))


@dataclass(frozen=True)
class _Query:
    key: tuple
    layer: int
    cell: Cell = field(compare=False)


@lru_cache(maxsize=512)
def _placed(query: _Query) -> ExpertMap:
    return place_cell(query.cell, history_loads(query.cell, layer=query.layer))


def placement_flags(cell: Cell) -> list[str]:
    """How eplb went, ``eplb=hierarchical`` or ``eplb=global``, and ``placed_on_judged_steps`` of a recording."""
    kind, flags = cell.balance.placement.kind, []
    if cell.model is None or kind not in READ_LOADS:
        return flags
    if kind in ("eplb", "lp"):
        nodes, groups = -(-cell.ep // ranks_per_node(cell)), getattr(cell_router(cell), "num_groups", 1)
        flags.append(f"eplb={eplb_scheme(cell.model.num_experts, cell.ep, num_nodes=nodes, num_groups=groups)}")
    trace = cell.workload.skew
    if isinstance(trace, Trace) and Path(trace.path).is_file():
        recording = recording_of(cell)
        if recording is not None and len(recording.steps.batches) <= cell.workload.steps:
            flags.append("placed_on_judged_steps")
    return flags
