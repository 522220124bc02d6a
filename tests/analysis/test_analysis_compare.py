"""Pairing cells along a path or across runs."""

import pandas as pd
import pytest

from tests.sample_run import H200, make_cell, measured_outcome, simulated_outcome, write_sample_run
from workbench.analysis.columns import settings, value_label, varying_columns, without_paths
from workbench.analysis.compare import RunTables, compare_by, compare_runs
from workbench.run.describe import unsupported
from workbench.store.reader import read_table
from workbench.store.run_folder import create_run
from workbench.store.writer import Writer


def tables(tmp_path, outcomes):
    run = create_run(tmp_path, name="compare", manifest={})
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    return RunTables(cells=read_table(run, "cells").frame, samples=read_table(run, "samples").frame)


def test_by_precision_pairs_only_what_differs_in_nothing_else(tmp_path):
    run = write_sample_run(tmp_path)
    cells, samples = read_table(run, "cells").frame, read_table(run, "samples").frame
    frame = compare_by(cells, samples, by="precision")
    assert len(frame) == 2 * 2 * 2 * 3 + 3 * 2
    ids = cells.set_index("cell_id")
    for row in frame.to_dict("records"):
        old, new = ids.loc[row["baseline_cell"]], ids.loc[row["candidate_cell"]]
        assert (old["precision"], new["precision"]) == ("bf16", row["candidate"])
        same = ["model", "strategy", "skew", "num_gpus", "engine", "device"]
        assert old[same].tolist() == new[same].tolist()
        assert row["ratio"] == pytest.approx(new["latency_us"] / old["latency_us"], rel=0.02)
        assert row["ratio"] == pytest.approx(row["candidate_us"] / row["baseline_us"])
    assert set(frame[frame["engine"] == "simulate"]["judged_by"]) == {"value"}
    assert set(frame[frame["engine"] == "measure"]["judged_by"]) == {"repeats"}
    assert set(frame[frame["device"] == "cuda"]["verdict"]) == {"faster"}


def test_by_any_dotted_path_and_by_columns_that_ep_follows(tmp_path):
    run = write_sample_run(tmp_path)
    cells, samples = read_table(run, "cells").frame, read_table(run, "samples").frame
    by_path = compare_by(cells, samples, by="dispatch.strategy")
    pd.testing.assert_frame_equal(by_path, compare_by(cells, samples, by="strategy"))
    assert set(by_path["baseline"]) == {"flat"}
    skewed = compare_by(cells, samples, by="workload.skew")
    assert set(skewed["candidate"]) == {"power_law(1.01)"}
    assert set(skewed["verdict"]) == {"unclear"}  # 1.25x on a cpu is no verdict
    nodes = compare_by(cells, samples, by="cluster.nodes")
    assert sorted(set(nodes["candidate"])) == ["16", "4"]


def test_baseline_by_name_and_missing_partners(tmp_path):
    cells = [make_cell(precision=precision) for precision in ("bf16", "fp8_block")]
    alone = make_cell(precision="fp8_block", tokens=7)
    run = tables(tmp_path, [measured_outcome(cell) for cell in (*cells, alone)])
    frame = compare_by(run.cells, run.samples, by="precision", baseline="bf16").set_index("candidate_cell")
    assert frame.loc[alone.cell_id, ["verdict", "why"]].tolist() == ["unclear", "no bf16 beside it"]
    assert set(compare_by(run.cells, run.samples, by="precision", baseline="fp8_block")["candidate"]) == {"bf16"}
    with pytest.raises(ValueError, match="--baseline fp9: no cell has that precision; there are bf16, fp8_block"):
        compare_by(run.cells, run.samples, by="precision", baseline="fp9")
    with pytest.raises(ValueError, match="--by precison: no cell has that path; nearest: precision"):
        compare_by(run.cells, run.samples, by="precison")


def test_cpu_and_gpu_rows_are_never_ranked(tmp_path):
    here = measured_outcome(make_cell(nodes=1, gpus_per_node=1), base_us=9000)
    there = measured_outcome(make_cell(nodes=1, gpus_per_node=1, hardware=H200), base_us=90)
    run = tables(tmp_path, [here, there])
    (row,) = compare_by(run.cells, run.samples, by="cluster").to_dict("records")
    assert (row["verdict"], row["why"]) == ("unclear", "cuda and cpu times are not ranked against one another")


def test_two_runs_cell_by_cell(tmp_path):
    kept, slower, gone, broken, new = (make_cell(hardware=H200, tokens=n) for n in (1, 2, 3, 4, 5))
    first = tables(tmp_path, [measured_outcome(cell, noise=0.002, repeats=2) for cell in (kept, slower, gone, broken)])
    second = tables(
        tmp_path,
        [
            measured_outcome(kept, noise=0.002, seed=1, repeats=2),
            measured_outcome(slower, base_us=1300, noise=0.002, seed=1, repeats=2),
            unsupported(broken, "gone"),
            measured_outcome(new),
        ],
    )
    frame = compare_runs(first, second).set_index("tokens_per_rank")
    assert frame["verdict"].to_dict() == {1: "same", 2: "slower", 3: "unclear", 4: "unclear", 5: "unclear"}
    assert frame["why"][[3, 4, 5]].tolist() == [
        "not in the second run",
        "the candidate ended unsupported",
        "not in the first run",
    ]


def test_pairs_that_differ_in_a_path_without_a_column_are_told_apart(tmp_path):
    outcomes = []
    for context in (1024, 4096):
        for precision in ("bf16", "fp8_block"):
            cell = make_cell(engine="simulate", precision=precision, hardware=H200)
            workload = cell.workload.model_copy(update={"context_tokens": context})
            cell = cell.model_copy(update={"cell_id": f"{cell.cell_id}-{context}", "workload": workload})
            outcomes.append(simulated_outcome(cell, base_us=float(context)))
    run = tables(tmp_path, outcomes)
    by_precision = compare_by(run.cells, run.samples, by="precision")
    assert by_precision["context_tokens"].tolist() == ["1024", "4096"]
    by_context = compare_by(run.cells, run.samples, by="workload.context_tokens")
    assert by_context[["precision", "candidate", "ratio"]].to_numpy().tolist() == [
        ["bf16", "4096", 4.0],
        ["fp8_block", "4096", 4.0],
    ]
    assert "context_tokens" not in by_context


def test_settings_keep_a_column_that_goes_with_the_group(tmp_path):
    outcomes = [
        simulated_outcome(make_cell(engine="simulate", tokens=tokens, group=group), base_us=1.0)
        for tokens, group in ((0, "none"), (8, "some"))
    ]
    assert list(settings(tables(tmp_path, outcomes).cells)) == ["tokens_per_rank"]


def test_settings_tell_a_recipe_by_its_name_alone(tmp_path):
    outcomes = []
    for precision in ("bf16", "fp8_block"):
        for experts in (16, 60):
            cell = make_cell(engine="simulate", precision=precision)
            model = cell.model.model_copy(update={"num_experts": experts})
            cell = cell.model_copy(update={"cell_id": f"{cell.cell_id}-{experts}", "model": model})
            outcomes.append(simulated_outcome(cell, base_us=1.0))
    assert list(settings(tables(tmp_path, outcomes).cells)) == ["precision", "num_experts"]


def test_no_pair_gives_an_empty_frame_with_its_columns(tmp_path):
    run = tables(tmp_path, [simulated_outcome(make_cell(engine="simulate"), base_us=1.0)])
    frame = compare_by(run.cells, run.samples, by="precision")
    assert frame.empty
    assert "verdict" in frame.columns


def test_labels_and_paths():
    assert value_label({"kind": "power_law", "alpha": 1.01}) == "power_law(1.01)"
    assert value_label({"name": "fp8_block", "weights": {}}) == "fp8_block"
    assert without_paths({"a": {"b": 1, "c": 2}, "d": 3}, ["a.b", "d"]) == {"a": {"c": 2}}


def test_varying_columns_leave_out_twins_and_what_is_implied():
    frame = pd.DataFrame(
        {
            "ep": [4, 4, 8, 8],
            "num_gpus": [4, 4, 8, 8],
            "precision": ["bf16", "mxfp4", "bf16", "mxfp4"],
            "scale_rule": ["none", "floor", "none", "floor"],
            "phase": ["decode"] * 4,
        }
    )
    assert varying_columns(frame) == ["num_gpus", "precision"]
