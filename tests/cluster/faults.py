"""A driver on one of the hosts that breaks cells on purpose and runs a sound one after each.

``python -m tests.cluster.faults ADDRESS`` prints a JSON line a fault: its name, how its cell ended, after how long, and
how the sound cell after it ended.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from workbench.orchestrate import gang as gang_module
from workbench.orchestrate import ranks as ranks_module
from workbench.orchestrate.gang import ask_gang
from workbench.orchestrate.ranks import Ranks, measure_cells, measured_rank
from workbench.orchestrate.session import open_session
from workbench.plan import plan_cells
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell
from workbench.spec.scenario_file import parse_scenario

LAYER = """
name: faults
model: deepseek-v3-tiny
engine: measure
cluster: {hardware: cpu, nodes: 3, gpus_per_node: 2}
workload: {tokens_per_rank: 16}
dispatch: {strategy: node_dedup}
balance: {placement: {redundant_experts: auto}}
measure: {warmup: 1, min_samples: 3, max_seconds: 0.5}
"""
LIMIT_S = 30.0
GRACE_S = 2.0
SLOW_RANK, SLOW_S = 3, 0.05
ROUNDS, ROUND_BYTES = 50, 8_000_000


def lies(context: Any, cell: Cell) -> Any:
    """Rank 1 announces a row more to everyone than it will send."""
    honest = context.transport.exchange_counts
    if context.rank == 1:
        context.transport.exchange_counts = lambda counts: honest([count + 1 for count in counts])
    try:
        return measured_rank(context, cell)
    finally:
        context.transport.exchange_counts = honest


def slow(context: Any, cell: Cell) -> Any:
    """One rank takes 50 ms longer for its first product."""
    from workbench.run.layer import LayerRun

    prompt = LayerRun._gemm1

    def late(run: LayerRun) -> None:
        time.sleep(SLOW_S)
        prompt(run)

    LayerRun._gemm1 = late if context.rank == SLOW_RANK else prompt
    try:
        return measured_rank(context, cell)
    finally:
        LayerRun._gemm1 = prompt


def seat(context: Any, cell: Cell) -> tuple[int, str, str | None]:
    return context.rank, os.uname().nodename, os.environ.get("GLOO_SOCKET_IFNAME")


def large(context: Any, cell: Cell) -> Any:
    import numpy as np

    return np.full(ROUND_BYTES // 8, context.rank, np.float64)


def main() -> None:
    gang_module.GRACE_S = GRACE_S
    sound, empty = _cell(), _cell("workload.sources={kind: empty_rank, rank: 4}")
    faults: tuple[tuple[str, Cell, Callable[[Any, Cell], Any]], ...] = (
        ("empty", empty, measured_rank),
        ("slow", sound, slow),
        ("lies", sound, lies),
    )
    with open_session(sys.argv[1]) as session:
        ranks = Ranks(session, should_stop=lambda: False, note=lambda text: None, allowance_s=LIMIT_S)
        first = _measure(ranks, sound, measured_rank)
        _say("sound", first, seats=ask_gang(ranks.gang, seat, sound, limit_s=LIMIT_S))
        for name, cell, task in faults:
            started = time.monotonic()
            outcome = _measure(ranks, cell, task)
            seconds = time.monotonic() - started
            after = _measure(ranks, sound, measured_rank)
            _say(name, outcome, seconds=seconds, after=after.record.status, slowest=_slowest(outcome))
        _say("large", first, grown=_rounds(ranks, sound))
        ranks.end()


def _cell(*overrides: str) -> Cell:
    (cell,) = plan_cells(parse_scenario(LAYER, file="faults.yaml", overrides=overrides))
    return cell


def _measure(ranks: Ranks, cell: Cell, task: Callable[[Any, Cell], Any]) -> Outcome:
    ranks_module.measured_rank = task
    ((_, outcome),) = measure_cells(ranks, [cell])
    return outcome


def _rounds(ranks: Ranks, cell: Cell) -> int:
    """Bytes that this process grew by while 50 rounds of 8 MB a rank came in through a store of 100 MB."""
    used = []
    for _ in range(ROUNDS):
        answers = ask_gang(ranks.gang, large, cell, limit_s=LIMIT_S)
        assert [float(answer[0]) for answer in answers] == list(range(len(answers)))
        del answers
        used.append(psutil.Process().memory_info().rss)
    return max(used[ROUNDS // 2 :]) - used[ROUNDS // 5]


def _slowest(outcome: Outcome) -> int | None:
    """The rank whose own stages, those without messages, take longest."""
    busy: dict[int, float] = {}
    for row in outcome.tables.get("stages", []):
        if row["stage"] not in ("dispatch", "combine"):
            busy[row["rank"]] = busy.get(row["rank"], 0.0) + row["duration_us"]
    return max(busy, key=busy.__getitem__) if busy else None


def _say(name: str, outcome: Outcome, **more: Any) -> None:
    record = outcome.record
    told = {"status": record.status, "reason": record.reason, "rank_max_us": record.rank_max_us}
    print(json.dumps({"name": name, **told, **more}), flush=True)


if __name__ == "__main__":
    main()
