"""What every strategy's transport leg takes over shaped links, beside the price of the plan that it carries.

Three hosts of two ranks, 200 Mbit/s between hosts, nothing shaped inside. The leg is what the hops carry: no
permutation, no count exchange, no encoding. Every rank routes at least 8 MB (tokens x top-k x payload). The price knows
the link's goodput alone, 1448 payload bytes of each 1514 byte frame; nothing in it was fitted to what is measured here.
"""

import json
import sys
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import pytest

from tests.cluster.hosts import Hosts
from tests.cluster.legs import plan_of
from tests.cluster.priced import leg_s
from workbench.comm.payload import payload_bytes
from workbench.comm.rank_plan import prepare_rank
from workbench.comm.strategies import STRATEGIES
from workbench.plan import plan_cells
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.spec.scenario_file import parse_scenario

REPEATS = 5
LIMIT_S = 240
TOP_K = 8
MANY, WIDE = (4096, 128), (32, 16384)
"""(Tokens a rank, hidden): low_latency takes few tokens only, and pays for a message a row, so its rows are wide."""
SCENARIO = """
name: legs
model: {{base: qwen3-30b-a3b, num_experts: 48, top_k: {top_k}, hidden: {hidden}}}
engine: measure
cluster: {{hardware: cpu, nodes: 3, gpus_per_node: 2}}
workload: {{tokens_per_rank: {tokens}}}
dispatch: {{strategy: {strategy}}}
"""


@dataclass(frozen=True)
class Leg:
    """Seconds of dispatch and of combine, as priced and as the median of the slowest rank."""

    strategy: str
    shape: tuple[int, int]
    priced: tuple[float, float]
    measured: tuple[float, float]

    @property
    def name(self) -> str:
        return f"{self.strategy} of {self.shape[0]} tokens"


def cell_of(strategy: str, shape: tuple[int, int]) -> Cell:
    tokens, hidden = shape
    text = SCENARIO.format(strategy=strategy, tokens=tokens, hidden=hidden, top_k=TOP_K)
    (cell,) = plan_cells(parse_scenario(text, file="legs.yaml"))
    return cell


def shapes() -> dict[str, tuple[tuple[int, int], Cell]]:
    """Each strategy's cell by its id, over many tokens where it can be had, and over few where it cannot."""
    chosen = {}
    for strategy in (name for name in STRATEGIES if name != "none"):
        for shape in (MANY, WIDE):
            cell = cell_of(strategy, shape)
            try:
                plan_of(cell)
            except Unsupported:
                continue
            chosen[cell.cell_id] = (shape, cell)
            break
    flat = cell_of("flat", WIDE)
    return chosen | {flat.cell_id: (WIDE, flat)}


@pytest.fixture(scope="module")
def legs(links: Hosts) -> list[Leg]:
    """Every strategy, one after the other, over one group of six processes."""
    chosen = shapes()
    scenario = links.folder / "cells.jsonl"
    scenario.write_text("".join(cell.model_dump_json() + "\n" for _, cell in chosen.values()))
    ranks = [
        links.start(host, [sys.executable, "-m", "tests.cluster.legs", str(scenario), str(rank), str(REPEATS)])
        for rank, host in enumerate(host for host in range(links.num_hosts) for _ in range(links.ranks_per_host))
    ]
    printed, complaints = ranks[0].communicate(timeout=LIMIT_S)
    assert [rank.wait(timeout=30) for rank in ranks] == [0] * len(ranks), complaints
    lines = [json.loads(line) for line in printed.splitlines()]
    return [_leg(*chosen[line["cell_id"]], line, links.goodput_gb_per_s) for line in lines]


def _leg(shape: tuple[int, int], cell: Cell, line: dict, host_gb_per_s: float) -> Leg:
    plan, payload = plan_of(cell), payload_bytes(cell.model.hidden, cell.dispatch.dispatch_dtype)
    assert cell.workload.tokens_per_rank * TOP_K * payload >= 8e6
    row_bytes = payload + prepare_rank(plan, rank=0).metadata_bytes
    out = leg_s(plan, cell.cluster, row_bytes=row_bytes, host_gb_per_s=host_gb_per_s, back=False)
    back = leg_s(plan, cell.cluster, row_bytes=payload, host_gb_per_s=host_gb_per_s, back=True)
    return Leg(cell.dispatch.strategy, shape, (out, back), (median(line["dispatch"]), median(line["combine"])))


def test_every_strategy_is_predicted_within_15_percent(legs, links):
    assert {leg.strategy for leg in legs} == set(STRATEGIES) - {"none"}
    off = {
        f"{leg.name}, {way}": f"{measured / priced:.3f} of {priced:.3f} s"
        for leg in legs
        for way, priced, measured in zip(("dispatch", "combine"), leg.priced, leg.measured, strict=True)
        if abs(measured / priced - 1) > 0.15
    }
    assert off == {}
    assert links.drops() == 0


def test_pairs_predicted_15_percent_apart_are_ordered_right(legs):
    compared, wrong = 0, []
    for one, other in combinations(legs, 2):
        if one.shape != other.shape:
            continue
        for way in (0, 1):
            fast, slow = sorted((one, other), key=lambda leg: leg.priced[way])
            if slow.priced[way] >= 1.15 * fast.priced[way]:
                compared += 1
                wrong += [(fast.name, slow.name)] * (fast.measured[way] >= slow.measured[way])
    assert wrong == []
    assert compared >= 40


def test_node_dedup_takes_at_most_half_of_what_flat_takes(legs):
    seconds = {leg.strategy: sum(leg.measured) for leg in legs if leg.shape == MANY}
    assert seconds["flat"] >= 2 * seconds["node_dedup"]
