"""Every router and a capacity in measured cells on real ranks, through the gate, beside the simulator's counts."""

import pytest

from kernels.routing import ROUTERS
from tests.run.rank_gang import cell, run_gang
from workbench.balance.placement import expert_map_of
from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.comm.strategies import make_plan
from workbench.run.measured import merge_reports
from workbench.run.simulated import run_simulated
from workbench.spec.dispatch import Balance
from workbench.spec.scenario import Cell
from workbench.workload.loads import slot_counts
from workbench.workload.traffic import route_all

DROPPING = ("switch", "batch_prioritized")


def routed(router, *, capacity=None, strategy="flat", skew="uniform", engine="measure") -> Cell:
    one = cell(ranks=2, strategy=strategy, skew=skew, engine=engine)
    return Cell.model_validate(one.model_dump() | {"router": router, "balance": Balance(capacity=capacity)})


ZIPF = {"kind": "zipf", "alpha": 1.5}
CELLS = {
    **{kind: routed(kind, skew=ZIPF) for kind in ROUTERS},
    "capacity": routed("softmax_topk", capacity=0.5, skew=ZIPF),
    "capacity zero": routed("softmax_topk", capacity=0.0, skew=ZIPF),
    "capacity below zero, two hops": routed("sigmoid_topk", capacity=-0.5, strategy="node_dedup", skew=ZIPF),
    "experts choose, two hops": routed("expert_choice", strategy="node_dedup"),
    "experts choose at home": routed("expert_choice", strategy="none"),
}


@pytest.fixture(scope="module")
def outcomes():
    reports = run_gang([(one, None) for one in CELLS.values()], world=2)
    return {name: merge_reports(one, part) for (name, one), part in zip(CELLS.items(), reports, strict=True)}


@pytest.mark.parametrize("name", CELLS)
def test_a_router_passes_the_gate(outcomes, name):
    record = outcomes[name].record
    assert record.status == "ok", record.reason
    assert record.latency_us > 0
    assert record.rel_error < 0.02
    assert any(row["stage"] == "gate" for row in outcomes[name].tables["stages"])


@pytest.mark.parametrize("name", CELLS)
def test_dropped_tokens_are_counted_and_simulated_alike(outcomes, name):
    record, one = outcomes[name].record, CELLS[name]
    traffic = route_all(one)
    assert record.dropped_tokens == traffic.dropped_R.sum()
    simulated = run_simulated(one.model_copy(update={"engine": "simulate"})).record
    assert simulated.status == "ok", simulated.reason
    assert simulated.dropped_tokens == record.dropped_tokens
    assert simulated.touched_experts == record.touched_experts
    dropping = name in DROPPING or ("capacity" in name.split(",")[0] and name != "capacity zero")
    if "choose" not in name and name != "expert_choice":
        assert (record.dropped_tokens > 0) == dropping
        pairs = slot_counts(traffic.ids, 16).sum()
        assert record.dropped_tokens == traffic.ids.size - pairs


@pytest.mark.parametrize("name", ["capacity", "capacity below zero, two hops", "experts choose, two hops"])
def test_bytes_on_the_wire_are_those_of_the_plan(outcomes, name):
    one = CELLS[name]
    traffic = route_all(one)
    plan = make_plan(one, traffic, expert_map_of(one, traffic))
    away = ~plan.topology.link_masks()["self"]
    rows = sum(int(hop.send_counts[away].sum()) for hop in plan.hops)
    assert outcomes[name].record.wire_bytes == rows * (dispatch_row_bytes(one) + combine_row_bytes(one))


def test_a_capacity_saves_bytes(outcomes):
    assert outcomes["capacity"].record.wire_bytes < outcomes["capacity zero"].record.wire_bytes
