"""Whole runs in this process: order, records, events, and ranks killed under them."""

import itertools
import json
import os
import threading
import time

import psutil
import pytest
import torch

from workbench.orchestrate.batches import BATCH, FEW, simulate_in_tasks
from workbench.orchestrate.execute import execute, exit_status
from workbench.orchestrate.planned import read_plan, unique_cells, write_plan
from workbench.spec.scenario import Cell
from workbench.store.progress import read_events
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder, open_run


@pytest.fixture
def go(session, tmp_path):
    """``go(cells, **more)``: execute in a folder of its own on the module's session."""

    def run(cells, *, resume=None, on_event=None):
        return execute(
            cells,
            scenario_name="tested",
            scenario_text="name: tested",
            results_dir=tmp_path,
            resume=resume,
            on_event=on_event,
            session=session,
        )

    return run


def test_a_run_ends_every_cell_and_says_so(go, exchange_cells, priced_cells):
    cells = [*exchange_cells(3), *priced_cells(2), *priced_cells(1)]
    events = []
    summary = go(cells, on_event=events.append)
    assert (summary.status, summary.exit_status, summary.num_left) == ("finished", 0, 0)
    assert summary.counts == {"ok": 5, "unsupported": 0, "infeasible": 0, "error": 0}
    run = RunFolder(path=summary.path, run_id=summary.run_id)
    frame = read_table(run, "cells").frame
    assert sorted(frame["cell_id"]) == sorted({cell.cell_id for cell in cells})
    assert set(frame["run_id"]) == {summary.run_id}
    assert (frame["latency_us"] > 0).all()
    written, torn = read_events(run.progress_path)
    assert torn == []
    assert [event["event"] for event in written] == [event["event"] for event in events]
    assert (written[0]["event"], written[0]["total"]) == ("run_start", 5)
    assert (written[-1]["event"], written[-1]["status"]) == ("run_end", "finished")
    cell_events = [event for event in written if event["event"] == "cell"]
    assert [event["done"] for event in cell_events] == [1, 2, 3, 4, 5]
    assert [event["engine"] for event in cell_events] == ["simulate"] * 2 + ["measure"] * 3
    assert cell_events[-1]["eta_s"] == 0
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["scenario_text"] == "name: tested"
    assert manifest["machine"]["packages"]["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.device_count() >= 8, reason="needs a machine with fewer than 8 GPUs")
def test_w01_more_gpus_than_exist_is_infeasible_within_30_s(go, exchange_cells):
    asked = exchange_cells(2, "cluster.hardware=h200-sxm", "cluster.gpus_per_node=8", "parallel.ep=8")
    started = time.monotonic()
    summary = go(asked)
    assert time.monotonic() - started < 30
    assert summary.counts["infeasible"] == 2
    assert summary.exit_status == 1
    (reason,) = set(read_table(open_run(summary.path.parent, summary.run_id), "cells").frame["reason"])
    assert "asked for 8 cuda ranks on one node (8 GPU)" in reason
    assert f"the cluster has 1 node (127.0.0.1: {torch.cuda.device_count()} GPU)" in reason


@pytest.mark.parametrize("value", ["7", "", "NoDevFiles"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_w12_stale_visible_devices_are_named_and_cpu_cells_run(go, exchange_cells, monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    gpu = exchange_cells(1, "cluster.hardware=h200-sxm")
    summary = go([*gpu, *exchange_cells(1)] if value == "" else gpu)
    run = open_run(summary.path.parent, summary.run_id)
    frame = read_table(run, "cells").frame.set_index("cell_id")
    assert frame.loc[gpu[0].cell_id, "status"] == "infeasible"
    assert f"CUDA_VISIBLE_DEVICES={value!r}" in frame.loc[gpu[0].cell_id, "reason"]
    assert summary.counts["ok"] == (1 if value == "" else 0)


def test_w04_a_killed_rank_costs_one_cell_and_resume_brings_it_back(go, exchange_cells):
    cells = exchange_cells(4, "measure.max_seconds=1.0", "measure.min_samples=100000")
    killed = []

    def kill_a_rank(event):
        if event["event"] == "cell" and event["done"] == 1:
            threading.Timer(0.5, lambda: killed.append(_kill_one_rank())).start()

    summary = go(cells, on_event=kill_a_rank)
    assert killed
    assert summary.counts == {"ok": 3, "unsupported": 0, "infeasible": 0, "error": 1}
    assert summary.exit_status == 1
    frame = read_table(open_run(summary.path.parent, summary.run_id), "cells").frame.set_index("cell_id")
    lost = frame.loc[cells[1].cell_id]
    assert lost["status"] == "error"
    assert lost["reason"].startswith("rank ")
    assert "died while running the cell" in lost["reason"]
    events = []
    again = go([], resume=summary.run_id, on_event=events.append)
    assert [event["cell_id"] for event in events if event["event"] == "cell"] == [cells[1].cell_id]
    assert (again.counts["ok"], again.counts["error"], again.exit_status) == (4, 0, 0)


def _kill_one_rank():
    ranks = [child for child in psutil.Process().children(recursive=True) if "RankActor" in " ".join(child.cmdline())]
    busy = max(ranks, key=lambda rank: rank.pid)
    busy.kill()
    return busy.pid


def test_simulated_cells_run_in_tasks_when_they_are_many(go, priced_cells):
    summary = go(priced_cells(FEW + 1))
    assert summary.counts["ok"] == FEW + 1


def test_a_batch_whose_worker_dies_is_tried_cell_by_cell(session, priced_cells):
    cells = priced_cells(3)
    bomb = _Bomb(**dict(priced_cells(1, "workload.seed=99")[0]))
    outcomes = {
        cell.cell_id: outcome.record
        for cell, outcome in simulate_in_tasks(session, [*cells, bomb], should_stop=lambda: False)
    }
    assert len(outcomes) == 4
    assert len(cells) + 1 <= BATCH
    assert [outcomes[cell.cell_id].status for cell in cells] == ["ok"] * 3
    assert outcomes[bomb.cell_id].status == "error"
    assert "ended without a result" in outcomes[bomb.cell_id].reason


class _Bomb(Cell):
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (1,)


def test_the_overhead_of_a_measured_cell_stays_small(go, exchange_cells):
    """50 ms beyond preparing, warm-up, samples (50 ms here) and check, which get 100 ms; the median cell decides."""
    cells = exchange_cells(12, "measure.max_seconds=0.05")
    ends = []
    go(cells, on_event=lambda event: ends.append(time.monotonic()) if event["event"] == "cell" else None)
    spans = sorted(after - before for before, after in itertools.pairwise(ends))
    assert spans[len(spans) // 2] < 0.2


def test_the_plan_of_a_run_is_read_back_as_it_was(tmp_path, exchange_cells, priced_cells):
    cells = [*exchange_cells(2), *priced_cells(2)]
    run = RunFolder(path=tmp_path, run_id="r")
    write_plan(run, cells)
    assert read_plan(run) == cells
    (tmp_path / "plan.jsonl.gz").write_bytes(b"cut")
    with pytest.raises(ValueError, match="give the scenario again"):
        read_plan(run)


def test_a_cell_planned_twice_runs_once(exchange_cells):
    one, two = exchange_cells(2)
    assert unique_cells([one, two, one]) == [one, two]


@pytest.mark.parametrize(
    ("counts", "status"),
    [({"ok": 1}, 0), ({"ok": 1, "unsupported": 3}, 0), ({"ok": 5, "error": 1}, 1), ({"infeasible": 2}, 1), ({}, 1)],
)
def test_exit_status_follows_the_cells(counts, status):
    assert exit_status(counts) == status
