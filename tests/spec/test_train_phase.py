"""A training step is of the phase train, said or not."""

import pytest

from workbench.plan import plan_cells
from workbench.spec.errors import SpecError
from workbench.spec.scenario_file import parse_scenario

STEP = "model: mixtral-8x7b\nscope: train_step\n"


def planned(text):
    (cell,) = plan_cells(parse_scenario(text, file="t.yaml"))
    return cell


def test_a_training_step_is_of_the_phase_train():
    unsaid, said = planned(STEP), planned(STEP + "workload: {phase: train}\n")
    assert unsaid.workload.phase == said.workload.phase == "train"
    assert unsaid.cell_id == said.cell_id
    assert planned("model: mixtral-8x7b\n").workload.phase == "decode"


def test_another_phase_is_refused_with_the_mend():
    with pytest.raises(SpecError, match=r"phase.*is of phase train, not prefill; leave workload\.phase out"):
        planned(STEP + "workload: {phase: prefill}\n")


def test_gradients_and_delayed_scaling_are_part_of_a_precision():
    cell = planned(
        STEP + "precision: {name: fp8_tensor, gradients: {format: e5m2, granularity: tensor}, scaling: delayed,"
        " amax_history: 8}\n"
    )
    assert (cell.precision.gradients.format, cell.precision.scaling, cell.precision.amax_history) == (
        "e5m2",
        "delayed",
        8,
    )
