"""One rank of the hosts that times the transport leg of plans: what its hops carry, and nothing besides.

``python -m tests.cluster.legs CELLS RANK REPEATS``: CELLS is a file of planned cells as JSON lines, all of one cluster.
Rank 0 prints a JSON line a cell: its id, and the seconds of the slowest rank by repeat, of dispatch and of combine.
Rows are made beforehand; no permutation, no count exchange, no encoding is in the times.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.cluster.hosts import Hosts
from workbench.balance.placement import expert_map_of
from workbench.comm.payload import payload_bytes
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import RankPlan, prepare_rank
from workbench.comm.strategies import make_plan
from workbench.run.context import RankContext, close_context, open_context
from workbench.spec.scenario import Cell
from workbench.workload.traffic import route_all

PORT = 29500


def main() -> None:
    path, rank, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    cells = [Cell.model_validate_json(line) for line in Path(path).read_text().splitlines()]
    ranks_per_host = cells[0].cluster.gpus_per_node
    context = open_context(
        rank=rank,
        world=cells[0].ep,
        device_type="cpu",
        ranks_per_node=ranks_per_host,
        init_method=f"tcp://{Hosts.ip(0)}:{PORT}",
        timeout_s=120,
        address=Hosts.ip(rank // ranks_per_host),
    )
    time_cell(cells[0], context, repeats=1)  # connections reach their full windows
    for cell in cells:
        seconds = time_cell(cell, context, repeats=repeats)
        if rank == 0:
            print(json.dumps({"cell_id": cell.cell_id, "dispatch": seconds[0], "combine": seconds[1]}), flush=True)
    close_context(context)


def time_cell(cell: Cell, context: RankContext, *, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of the slowest rank, by repeat."""
    plan, dtypes = plan_of(cell), cell.dispatch
    mine = prepare_rank(plan, rank=context.rank)
    out_bytes = payload_bytes(cell.model.hidden, dtypes.dispatch_dtype) + mine.metadata_bytes
    back_bytes = payload_bytes(cell.model.hidden, dtypes.combine_dtype)
    ways = (_dispatch(mine, context, out_bytes), _combine(mine, context, back_bytes))
    seconds = [[_timed(way, context) for way in ways] for _ in range(repeats)]
    return [first for first, _ in seconds], [second for _, second in seconds]


def plan_of(cell: Cell) -> DispatchPlan:
    """The plan of a cell's first layer."""
    traffic = route_all(cell)
    return make_plan(cell, traffic, expert_map_of(cell, traffic))


def _dispatch(mine: RankPlan, context: RankContext, row_bytes: int) -> Callable[[], None]:
    buffers = [torch.zeros(len(hop.send_rows), row_bytes, dtype=torch.uint8) for hop in mine.hops]

    def run() -> None:
        for hop, rows in zip(mine.hops, buffers, strict=True):
            context.transport.carry(rows, hop)

    return run


def _combine(mine: RankPlan, context: RankContext, row_bytes: int) -> Callable[[], None]:
    buffers = [torch.zeros(sum(hop.recv_counts), row_bytes, dtype=torch.uint8) for hop in mine.hops]

    def run() -> None:
        for hop, rows in reversed(list(zip(mine.hops, buffers, strict=True))):
            context.transport.carry_back(rows, hop)

    return run


def _timed(way: Callable[[], None], context: RankContext) -> float:
    context.barrier()
    start = time.perf_counter()
    way()
    return float(context.gather([time.perf_counter() - start]).max())


if __name__ == "__main__":
    main()
