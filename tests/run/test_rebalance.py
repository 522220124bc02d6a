"""What the record says of placing experts anew: that of the moves themselves, and nothing where none can be."""

import pytest

from tests.run.rank_gang import cell, model
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.run.simulated import run_simulated
from workbench.simulate.weights import expert_bytes
from workbench.spec.scenario import Cell


def placed(kind="eplb", *, skew="uniform", steps=4, engine="simulate", **links) -> Cell:
    one = cell(tokens=256, moe=model(experts=32), engine=engine).model_dump()
    one["workload"] |= {"skew": skew, "steps": steps}
    one["balance"] |= {"placement": {"kind": kind, "redundant_experts": 4}}
    one["cluster"]["hardware"]["scale_out"] |= links
    return Cell.model_validate(one)


def said(one: Cell) -> float | None:
    """Microseconds of the rebalance, if the record tells any."""
    flags = (run_simulated(one).record.flags or "").split(",")
    return next((float(flag.partition("=")[2]) for flag in flags if flag.startswith("rebalance_us")), None)


def test_loads_that_move_cost_a_rebalance_and_lasting_ones_less():
    moving = said(placed(skew={"kind": "rotating_hot_rank", "factor": 4, "period": 4}))
    lasting = said(placed(skew={"kind": "zipf", "alpha": 1.0}))
    assert moving > lasting > expert_bytes(model(), placed().precision) / 1e3  # one expert at 1 GB/s


def test_what_a_node_shares_makes_it_slower():
    skew = {"kind": "rotating_hot_rank", "factor": 4, "period": 4}
    assert said(placed(skew=skew, node_gb_per_s=0.25)) > 2 * said(placed(skew=skew))


@pytest.mark.parametrize("other", [{"kind": "linear"}, {"kind": "round_robin"}, {"steps": 1}])
def test_cells_that_are_not_placed_by_loads_or_have_one_step_say_nothing(other):
    assert said(placed(**other)) is None


def test_a_measured_record_says_it_too():
    one = placed("greedy", skew={"kind": "zipf", "alpha": 1.0}, engine="measure").model_dump()
    one["balance"]["training"], one["parallel"]["ranks"], one["dispatch"]["strategy"] = "aux_loss", (0,), "none"
    one = Cell.model_validate(one)
    alone = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    record = merge_reports(one, [run_rank(one, alone)]).record
    assert record.status == "ok", record.reason
    assert "rebalance_us=" in record.flags
