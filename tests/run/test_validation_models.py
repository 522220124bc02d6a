"""Announced and published serving rates: their cells are what their sources say, and their errors are printed."""

import pytest

from workbench.run.validation import models
from workbench.simulate.published import published


def test_anchors_are_priced_on_their_gpus_at_their_degrees():
    decode = next(anchor for anchor in models.ANCHORS if "EP144" in anchor.name)
    assert decode.tokens_per_s_per_gpu == 1850
    cell = models.one_cell(decode.block)
    assert (cell.ep, cell.cluster.num_gpus, cell.cluster.hardware.name) == (144, 144, "h800-sxm")
    assert cell.balance.placement.redundant_experts == 32
    alone = next(anchor for anchor in models.ANCHORS if "TP8" in anchor.name)
    point = models._priced(alone)
    assert point["us"] == pytest.approx(8e6 / 16_500)
    assert 0.4 < point["predicted_us"] / point["us"] < 2.5


def test_every_anchor_names_where_and_fits():
    for anchor in models.ANCHORS:
        cell = models.one_cell(anchor.block)
        assert cell.scope.kind == "model"
        assert cell.cluster.num_gpus == cell.ep * cell.parallel.tp


def test_serving_rows_are_priced_as_their_engines_ran_them(monkeypatch):
    table = published("e2e_serving")
    few = table[table["model"].eq("gpt-oss-120b") & table["hardware"].eq("h200_sxm") & table["backend"].eq("vllm")]
    few = few[few["concurrency"].eq(64) & few["isl"].eq(1024)]
    monkeypatch.setattr(models, "published", lambda name: few)
    monkeypatch.setattr(models, "ANCHORS", models.ANCHORS[4:5])
    lines = models.models_section()
    served = [one for one in lines if one.split.startswith("InferenceX")]
    assert len(served) == 1
    assert served[0].count == len(served[0].points) >= 3
    assert served[0].mape > 0
    assert {point["kernel"] for point in served[0].points} == {"vllm"}
    assert all("fitted" in one.held_out for one in lines)
    assert lines[0].count == 1
    assert lines[1].hardware == "h20"
