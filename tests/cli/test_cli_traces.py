"""Recorded traffic from the command line: what cannot be used is refused before anything runs."""

import json

import numpy as np
import pytest

from tests.workload.trace_files import chosen
from workbench.cli.main import main

SCENARIO = """
model: {{base: mixtral-8x7b, num_experts: 16, top_k: {top_k}}}
cluster: {{hardware: h200-sxm, nodes: 1, gpus_per_node: 4}}
workload: {{tokens_per_rank: 16, steps: 2, skew: {{kind: trace, path: {path}, form: ids}}}}
engine: simulate
"""


def scenario(tmp_path, *, top_k: int) -> str:
    np.savez(tmp_path / "t.npz", ids=chosen(tokens=40))
    (tmp_path / "s.yaml").write_text(SCENARIO.format(path="t.npz", top_k=top_k))
    return str(tmp_path / "s.yaml")


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_trace_of_another_model_is_refused_at_once(command, tmp_path, capfd):
    assert main([command, scenario(tmp_path, top_k=2)]) == 2
    said = capfd.readouterr().err
    assert "workload.skew.path: " in said
    assert "has [4] experts a token, model.top_k is 2; name its model" in said
    assert "Traceback" not in said


def test_a_trace_that_fits_is_planned(tmp_path, capfd):
    assert main(["plan", scenario(tmp_path, top_k=4), "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["count"] == 1


def test_simulated_cells_say_that_the_trace_was_repeated(tmp_path):
    from workbench.plan import plan_cells
    from workbench.run.simulated import run_simulated
    from workbench.spec.scenario_file import load_scenario

    (cell,) = plan_cells(load_scenario(scenario(tmp_path, top_k=4)))
    record = run_simulated(cell).record
    assert record.status == "ok", record.reason
    assert "trace_steps=1" in record.flags.split(",")
    assert "trace_tokens=40" in record.flags.split(",")
