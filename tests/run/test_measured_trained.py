"""Cells with ``balance.training``: measured at the step that the simulator prices, with the router as steered."""

import pytest

from tests.run.rank_gang import cell, model, run_gang
from workbench.run.hybrid import merge_hybrid
from workbench.run.measured import merge_reports
from workbench.run.simulated import run_simulated
from workbench.spec.scenario import Cell, LayerScope

ZIPF = {"kind": "zipf", "alpha": 1.0}
DRIFT = {"kind": "drift", "rate": 0.05, "sigma": 1.0}


def trained(training: str, *, steps: int = 40, router="model", placement="linear", **options) -> Cell:
    one = cell(ranks=2, tokens=64, **{"skew": ZIPF, "moe": model(shared=False)} | options)
    return Cell.model_validate(
        one.model_dump()
        | {
            "workload": one.workload.model_dump() | {"steps": steps},
            "balance": {"training": training, "placement": {"kind": placement}},
            "router": router,
        }
    )


CELLS = {
    "bias": trained("bias", steps=300),
    "aux_loss": trained("aux_loss", router="softmax_topk", strategy="node_dedup"),
    "aux_loss that follows a drift": trained("aux_loss", skew=DRIFT, dtype="fp8_block"),
    "bias in a train step": trained("bias", steps=200, scope=LayerScope(kind="train_step")),
    "aux_loss in a train step": trained("aux_loss", router="softmax_topk", scope=LayerScope(kind="train_step")),
    "bias, chunks, eplb": trained("bias", overlap={"kind": "chunk", "degree": 2}, placement="eplb"),
}
HYBRID = trained("aux_loss", engine="hybrid")
SWITCH = trained("bias", router="switch")


@pytest.fixture(scope="module")
def reports():
    cells = [*CELLS.values(), HYBRID, SWITCH]
    return run_gang([(CELLS["bias"], "unsteered"), *((one, None) for one in cells)], world=2)


def loads_of(outcome) -> dict:
    return {
        (row["kind"], row["index"]): (row["step"], row["tokens"])
        for row in outcome.tables["loads"]
        if row["kind"] in ("expert", "rank")
    }


@pytest.mark.parametrize("name", CELLS)
def test_measured_loads_are_the_simulated_of_the_same_step(reports, name):
    """Through the gate: the layer's output and a train step's gradients are those of the steered routing."""
    one = CELLS[name]
    measured = merge_reports(one, reports[1 + list(CELLS).index(name)])
    assert measured.record.status == "ok", measured.record.reason
    simulated = run_simulated(one.model_copy(update={"engine": "simulate"}))
    assert simulated.record.status == "ok", simulated.record.reason
    assert loads_of(measured) == loads_of(simulated)
    last = one.workload.steps - 1
    assert {step for step, _ in loads_of(measured).values()} == {last}
    for record in (measured.record, simulated.record):
        assert f"trained_steps={last}" in record.flags.split(",")
        assert record.training_balance == one.balance.training
    for column in ("load_max_over_mean", "dropped_tokens", "touched_experts", "wire_bytes"):
        assert getattr(measured.record, column) == pytest.approx(getattr(simulated.record, column)), column


def test_training_has_balanced_what_is_measured(reports):
    """Tokens of the most popular expert, over the mean's."""
    for name in ("bias", "aux_loss"):
        one = CELLS[name]
        after = loads_of(merge_reports(one, reports[1 + list(CELLS).index(name)]))
        untrained = {"engine": "simulate", "balance": one.balance.model_copy(update={"training": "none"})}
        before = loads_of(run_simulated(one.model_copy(update=untrained)))
        most, former = (max(n for (kind, _), (_, n) in of.items() if kind == "expert") for of in (after, before))
        assert most < 0.8 * former


def test_a_hybrid_record_prices_the_trained_step(reports):
    hybrid = merge_hybrid(HYBRID, merge_reports(HYBRID, reports[1 + len(CELLS)]))
    assert hybrid.record.status == "ok", hybrid.record.reason
    assert loads_of(hybrid) == loads_of(run_simulated(HYBRID.model_copy(update={"engine": "simulate"})))


def test_a_rank_that_is_not_steered_fails_the_cell(reports):
    record = merge_reports(CELLS["bias"], reports[0]).record
    assert record.status == "error"
    assert "its routing is not that of ranks" in record.reason


def test_a_router_that_cannot_be_steered_is_unsupported(reports):
    record = merge_reports(SWITCH, reports[2 + len(CELLS)]).record
    assert (record.status, record.reason[:46]) == ("unsupported", "balance.training: router switch cannot be stee")
