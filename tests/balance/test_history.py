"""Steps that place and steps that judge are never the same ones."""

import numpy as np

from tests.workload.factory import GROUPED, make_cell
from workbench.balance import history
from workbench.balance.history import HISTORY_STEPS, history_loads, placed_before, placement_flags, recent_loads
from workbench.balance.placement import expert_map_of, to_slots
from workbench.spec.dispatch import Balance, Placement
from workbench.spec.workload import Workload
from workbench.workload.loads import rank_counts
from workbench.workload.traffic import route_all

STEEP = {"kind": "power_law", "alpha": 1.2}


def placed(kind, *, steps=1, redundant=8, skew=STEEP, **fields):
    cell = make_cell(ranks=8, experts=64, tokens=256, **fields)
    workload = Workload(tokens_per_rank=256, skew=skew, steps=steps)
    balance = Balance(placement=Placement(kind=kind, redundant_experts=redundant))
    return cell.model_copy(update={"workload": workload, "balance": balance})


def imbalance(cell, expert_map, *, step):
    slots = to_slots(expert_map, route_all(cell, step=step).ids)
    counts = rank_counts(slots, num_ranks=8, slots_per_rank=expert_map.slots_per_rank)
    return counts.max() / counts.mean()


def test_no_judged_step_places(monkeypatch):
    asked = []

    def spy(cell, *, layer, step, max_tokens, steer):
        asked.append((layer, step))
        return route_all(cell, layer=layer, step=step, max_tokens=max_tokens, steer=steer)

    monkeypatch.setattr(history, "route_all", spy)
    placed_before(placed("eplb", steps=3), layer=2)
    assert asked == [(2, step) for step in range(3, 3 + HISTORY_STEPS)]
    asked.clear()
    recent_loads(placed("eplb", steps=2))
    recent_loads(placed("eplb", steps=7))
    assert asked == [(0, step) for step in (0, 1, 3, 4, 5, 6)]
    asked.clear()
    placed_before(placed("linear"))
    assert asked == []


def test_history_holds_for_a_lasting_skew_and_not_for_one_that_moves():
    lasting, moving = placed("eplb", steps=2), placed("eplb", steps=2, skew={"kind": "rotating_hot_rank", "factor": 4})
    assert imbalance(lasting, placed_before(lasting), step=0) < 1.12
    assert imbalance(lasting, placed_before(placed("linear", redundant=0)), step=0) > 1.5
    assert imbalance(moving, expert_map_of(moving, route_all(moving, step=0)), step=0) < 1.1
    assert imbalance(moving, placed_before(moving), step=0) > 1.2


def test_layers_are_placed_apart():
    cell = placed("eplb")
    assert (placed_before(cell, layer=0).slots != placed_before(cell, layer=1).slots).any()
    np.testing.assert_array_equal(placed_before(cell, layer=1).slots, placed_before(cell, layer=1).slots)


def test_a_large_batch_is_sampled_for_its_history(monkeypatch):
    cell = placed("eplb")
    whole = history_loads(cell)
    assert whole.sum() == HISTORY_STEPS * 8 * 256 * 4
    monkeypatch.setattr(history, "_MAX_LOGITS", 8 * 64 * 32)
    few = history_loads(cell)
    assert few.sum() == HISTORY_STEPS * 8 * 32 * 4
    assert np.corrcoef(few, whole)[0, 1] > 0.98


def test_flags_name_the_way_of_eplb():
    assert placement_flags(placed("linear")) == []
    assert placement_flags(placed("greedy")) == []
    assert placement_flags(placed("eplb")) == ["eplb=global"]
    assert placement_flags(placed("lp", router=GROUPED)) == ["eplb=hierarchical"]
