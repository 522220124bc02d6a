"""Runs that become one, as repeats of the same cells or as cells side by side."""

import pytest

from tests.sample_run import H200, make_cell, measured_outcome, simulated_outcome
from workbench.run.describe import unsupported
from workbench.store.merge import merge_runs, pool
from workbench.store.reader import read_table
from workbench.store.run_folder import create_run, run_info
from workbench.store.writer import Writer

MACHINE = {"machine": {"cpu": {"name": "test processor"}, "gpus": [{"name": "NVIDIA H200"}] * 2}}


def write(folder, outcomes, *, name="suite", manifest=MACHINE):
    run = create_run(folder, name=name, manifest=manifest)
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    return run


def test_runs_of_one_suite_become_its_repeats(tmp_path):
    cell, other = make_cell(hardware=H200), make_cell(hardware=H200, tokens=7)
    latencies = (1000.0, 1400.0, 1100.0)
    runs = [
        write(tmp_path, [measured_outcome(cell, base_us=us, noise=0, samples=10), measured_outcome(other, seed=n)])
        for n, us in enumerate(latencies)
    ]
    merged = merge_runs(runs, results_dir=tmp_path)
    cells = read_table(merged, "cells").frame.set_index("cell_id")
    row = cells.loc[cell.cell_id]
    assert list(cells.index) == [cell.cell_id, other.cell_id]
    assert (row["latency_us"], row["latency_ci_low_us"], row["latency_ci_high_us"]) == (1100.0, 1000.0, 1400.0)
    assert (row["num_samples"], row["run_id"]) == (30, merged.run_id)
    samples = read_table(merged, "samples").frame
    mine = samples[samples["cell_id"] == cell.cell_id]
    assert mine.groupby("repeat")["us"].median().to_dict() == dict(enumerate(latencies))
    stages = read_table(merged, "stages").frame.query("cell_id == @cell.cell_id and rank == 0")
    assert stages["duration_us"].sum() == pytest.approx(1100.0)
    info, manifest = run_info(merged), merged.manifest()
    assert (info.status, info.total, info.counts) == ("finished", 2, {"ok": 2})
    assert (manifest["merged_from"], manifest["repeats"]) == ([run.run_id for run in runs], 3)


def test_merging_again_goes_on_counting_repeats(tmp_path):
    cell = make_cell()
    runs = [write(tmp_path, [measured_outcome(cell, seed=seed)]) for seed in range(4)]
    pairs = [merge_runs(pair, results_dir=tmp_path) for pair in (runs[:2], runs[2:])]
    samples = pool(pairs, tables=["samples"]).tables["samples"]
    assert sorted(set(samples["repeat"].to_pylist())) == [0, 1, 2, 3]


def test_what_is_no_repeat_is_kept_once(tmp_path):
    measured, priced, broken = make_cell(), make_cell(engine="simulate"), make_cell(tokens=3)
    first = write(tmp_path, [simulated_outcome(priced, base_us=5.0), measured_outcome(broken)])
    second = write(tmp_path, [simulated_outcome(priced, base_us=4.0), unsupported(broken, "gone"),
                              measured_outcome(measured)])  # fmt: skip
    merged = merge_runs([first, second], results_dir=tmp_path, name="both")
    cells = read_table(merged, "cells").frame.set_index("cell_id")
    assert cells.loc[priced.cell_id, "latency_us"] == 4.0
    assert cells["status"].to_dict() == {priced.cell_id: "ok", broken.cell_id: "ok", measured.cell_id: "ok"}
    assert set(read_table(merged, "samples").frame["repeat"]) == {0}


def test_what_cannot_be_merged_says_why(tmp_path):
    cell = make_cell()
    here = write(tmp_path, [measured_outcome(cell)])
    there = write(tmp_path, [measured_outcome(cell)], manifest={"machine": {"cpu": {"name": "another"}}})
    with pytest.raises(ValueError, match=r"test processor, 2x NVIDIA H200.*another.*no repeats"):
        merge_runs([here, there], results_dir=tmp_path)
    with pytest.raises(ValueError, match="is given twice"):
        merge_runs([here, here], results_dir=tmp_path)
    with pytest.raises(ValueError, match="two runs or more"):
        merge_runs([here], results_dir=tmp_path)
    with Writer(there), pytest.raises(ValueError, match="still being written"):
        merge_runs([here, there], results_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
