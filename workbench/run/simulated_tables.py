"""Table rows of a priced layer, bounded: few ranks' stages, the busiest links, loads to a limit, one rank's memory."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from workbench.balance.dynamics import is_trained, judged_step, traced_steps
from workbench.balance.expert_map import even_rank_loads
from workbench.balance.history import placed_before
from workbench.simulate.layer import LayerCost, Leg
from workbench.simulate.memory import MemoryFit
from workbench.simulate.traffic import GroupTraffic
from workbench.spec.scenario import Cell
from workbench.workload.sources import source_tokens

MAX_LOAD_ROWS = 512

Rows = list[dict[str, Any]]


def stage_rows(cell: Cell, cost: LayerCost, *, ranks: Iterable[int] | None = None) -> Rows:
    """Stages in layer 0 of ``ranks``, by default rank 0 and the slowest; ``duration_us`` is a rank's own work, without
    waiting."""
    return [
        {
            "cell_id": cell.cell_id,
            "rank": rank,
            "stream": span.stream,
            "stage": span.stage,
            "start_us": float(span.start_us_R[rank]),
            "duration_us": float(span.duration_us_R[rank]),
            "bytes": round(float(span.bytes_R[rank])),
            "flops": round(float(span.flops_R[rank])),
        }
        for rank in (sorted({0, cost.slowest}) if ranks is None else ranks)
        for span in cost.spans
    ]


def link_rows(cell: Cell, cost: LayerCost) -> Rows:
    """Of each hop, link class and direction the busiest rank's link and rank 0's.

    A link is called ``leg.hop/class/direction/rank``, such as ``dispatch.flat/scale_out/in/rank 3``; a node's shared
    NIC ``dispatch.flat/node_nic/in/node 1``. What a hop costs besides is there as ``messages``, ``own_copy`` (with
    what stays on its rank) and ``latency``. Parts of the tokens that travel by themselves are added up.
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for leg in cost.legs for row in leg_rows(cell.cell_id, leg)):
        same = rows.setdefault(row["link"], row | {"bytes": 0, "busy_us": 0.0})
        same["bytes"] += row["bytes"]
        same["busy_us"] += row["busy_us"]
    return list(rows.values())


def leg_rows(cell_id: str, leg: Leg) -> Rows:
    """Links of one hop, those that carry nothing left out."""
    load, cost = leg.load, leg.cost
    links = (
        ("scale_up/out", load.up_sent_R, cost.up_sent_us_R),
        ("scale_up/in", load.up_received_R, cost.up_received_us_R),
        ("scale_out/out", load.out_sent_R, cost.out_sent_us_R),
        ("scale_out/in", load.out_received_R, cost.out_received_us_R),
        ("own_copy", load.self_R, cost.copy_us_R),
    )
    found = [
        (f"{name}/rank {rank}", float(rows_R[rank]), float(busy_us_R[rank]))
        for name, rows_R, busy_us_R in links
        if rows_R.any()
        for rank in sorted({0, int(np.argmax(rows_R))})
    ]
    found += _node_links(leg)
    busiest = int(np.argmax(cost.messages_us_R))
    if cost.messages_us_R.any():
        found.append((f"messages/rank {busiest}", 0.0, float(cost.messages_us_R[busiest])))
    if cost.latency_us:
        found.append(("latency", 0.0, cost.latency_us))
    return [
        {"cell_id": cell_id, "link": f"{leg.name}/{name}", "bytes": round(rows * leg.row_bytes), "busy_us": busy_us}
        for name, rows, busy_us in found
    ]


def _node_links(leg: Leg) -> list[tuple[str, float, float]]:
    """The busiest node's shared NIC in each direction: name, rows, microseconds; none where nothing is shared."""
    found = []
    for way, rows_R, busy_us_R in (
        ("out", leg.load.out_sent_R, leg.cost.node_sent_us_R),
        ("in", leg.load.out_received_R, leg.cost.node_received_us_R),
    ):
        if busy_us_R.any():
            rows_N, rank = np.bincount(leg.load.node_R, rows_R), int(np.argmax(busy_us_R))
            node = int(leg.load.node_R[rank])
            found.append((f"node_nic/{way}/node {node}", float(rows_N[node]), float(busy_us_R[rank])))
    return found


def load_rows(cell: Cell, traffic: GroupTraffic) -> Rows:
    """Pairs of layer 0 and the judged step by logical expert and by rank, the most loaded MAX_LOAD_ROWS of each, before
    them those of the steps of its training; and the copies of tokens that pass each node's port on their way out to the
    experts."""
    rows = (
        _trained_loads(cell) + _loads(cell, "expert", traffic.expert_tokens_E) + _loads(cell, "rank", traffic.pairs_R)
    )
    out_R = sum((hop.out_sent_R for hop in traffic.hops), start=np.zeros(traffic.num_ranks))
    in_R = sum((hop.out_received_R for hop in traffic.hops), start=np.zeros(traffic.num_ranks))
    if not out_R.any():
        return rows
    ports = (("node_out", out_R), ("node_in", in_R))
    return rows + [row for kind, of_R in ports for row in _loads(cell, kind, np.bincount(traffic.node_R, of_R))]


def _trained_loads(cell: Cell) -> Rows:
    """Loads of the steps before the judged one by expert, and by rank with replicas sharing evenly, of a cell whose
    router is trained: where they drift apart, collapse or come together. The most loaded of each step, a sample's
    counts scaled up."""
    if not is_trained(cell):
        return []
    rows, expert_map = [], placed_before(cell)
    pairs = float(source_tokens(cell).sum()) * cell.model.top_k
    for step in traced_steps(cell)[:-1]:
        loads_E = step.loads_E * (pairs / max(1, step.loads_E.sum()))
        rows += _loads(cell, "expert", loads_E, step=step.step)
        rows += _loads(cell, "rank", even_rank_loads(expert_map, loads_E), step=step.step)
    return rows


def _loads(cell: Cell, kind: str, counts: np.ndarray, *, step: int | None = None) -> Rows:
    kept = np.sort(np.argsort(-counts, kind="stable")[:MAX_LOAD_ROWS])
    step = judged_step(cell) if step is None else step
    return [
        {"cell_id": cell.cell_id, "layer": 0, "step": step, "kind": kind, "index": int(index), "tokens": round(tokens)}
        for index, tokens in zip(kept.tolist(), counts[kept].tolist(), strict=True)
    ]


def memory_rows(cell: Cell, fit: MemoryFit, *, rank: int) -> Rows:
    """Bytes by part of the rank that needs most."""
    return [{"cell_id": cell.cell_id, "rank": rank, "what": what, "bytes": size} for what, size in fit.parts.items()]
