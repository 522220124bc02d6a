"""Loads over the steps of a training in the table of a priced cell: collapse, and balancing that holds it."""

import pandas as pd
import pytest

from tests.simulate.cells import make_cell
from workbench.balance.dynamics import TRACED_STEPS, is_trained, judged_step, reached, traced_steps
from workbench.report.figures.loads import _lines
from workbench.run.simulated import run_simulated
from workbench.spec.identity import cell_id
from workbench.spec.scenario import Cell

STEPS = 40


def trained(training="none", *, steps=STEPS, **balance):
    placement = {"kind": "linear", "redundant_experts": 0}
    return make_cell(
        "qwen3-30b-a3b", ep=4, tokens=256, skew={"kind": "drift", "sigma": 0.5, "rate": 0.01},
        workload={"steps": steps}, balance={"training": training, "placement": placement} | balance,
    )  # fmt: skip


def peaks(cell, kind):
    loads = pd.DataFrame(run_simulated(cell).tables["loads"])
    sizes = loads[loads["kind"] == kind].groupby("step")["tokens"].agg(["max", "mean", "sum"])
    return sizes["max"] / sizes["mean"], sizes["sum"]


def test_experts_that_are_reinforced_collapse_in_the_table():
    alone, counted = peaks(trained(reinforcement=0.05), "expert")
    assert list(alone.index) == sorted(alone.index)
    assert (alone.index[0], alone.index[-1], len(alone)) == (0, STEPS - 1, TRACED_STEPS)
    assert alone.iloc[-1] > 2 * alone.iloc[0]
    assert counted.tolist() == pytest.approx([4 * 256 * 8] * len(counted), rel=0.01)
    held, _ = peaks(trained("aux_loss", rate=10, reinforcement=0.05), "expert")
    assert held.iloc[-1] < 0.5 * alone.iloc[-1]
    ranks, _ = peaks(trained(reinforcement=0.05), "rank")
    assert ranks.iloc[-1] > ranks.iloc[0]


def test_the_judged_step_is_the_last_and_its_router_is_priced():
    cell = trained(reinforcement=0.05)
    assert is_trained(cell)
    assert judged_step(cell) == STEPS - 1
    assert reached(cell) == traced_steps(cell)[-1].steer
    record = run_simulated(cell).record
    assert f"trained_steps={STEPS - 1}" in record.flags
    assert record.load_max_over_mean > run_simulated(trained(steps=1, reinforcement=0.05)).record.load_max_over_mean


def test_without_training_there_is_one_step_and_the_id_is_as_before():
    loads = pd.DataFrame(run_simulated(trained(steps=4)).tables["loads"])
    assert loads["step"].unique().tolist() == [0]
    values = trained().__dict__
    assert cell_id(values) == cell_id(Cell.model_validate(trained().model_dump()).__dict__)
    assert cell_id(values) != cell_id(trained(reinforcement=0.05).__dict__)


def test_the_figure_of_loads_shows_the_judged_step():
    cell = trained(reinforcement=0.05)
    loads = pd.DataFrame(run_simulated(cell).tables["loads"])
    experts = loads[loads["kind"] == "expert"]
    ((_, shares),) = _lines(experts, {cell.cell_id: "one"})
    last = experts[experts["step"] == STEPS - 1]["tokens"]
    assert shares[0] == pytest.approx(last.max() / last.mean())
