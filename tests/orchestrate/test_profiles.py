"""``run --profile``: a trace beside the record of every measured cell, none for what is only priced."""

import gzip
import json

from workbench.orchestrate.execute import PROFILES, execute
from workbench.store.progress import read_events
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder


def profiled(cells, session, tmp_path):
    summary = execute(
        cells, scenario_name="traced", scenario_text="name: traced", results_dir=tmp_path, session=session, profile=True
    )
    assert summary.exit_status == 0
    return RunFolder(path=summary.path, run_id=summary.run_id)


def test_each_measured_cell_keeps_the_trace_of_its_first_rank(session, exchange_cells, priced_cells, tmp_path):
    measured = exchange_cells(2)
    run = profiled([*measured, *priced_cells(1)], session, tmp_path)
    kept = {path.name: path for path in (run.path / PROFILES).iterdir()}
    assert set(kept) == {f"{cell.cell_id}.json.gz" for cell in measured}
    for path in kept.values():
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert {"dispatch", "pass 0"} <= {event["name"] for event in events if "name" in event}
    frame = read_table(run, "cells").frame
    assert (frame["status"] == "ok").all()


def test_a_run_without_measured_cells_says_that_there_is_nothing_to_profile(session, priced_cells, tmp_path):
    run = profiled(priced_cells(1), session, tmp_path)
    assert not (run.path / PROFILES).exists()
    events, _ = read_events(run.progress_path)
    assert any("nothing to profile" in event.get("text", "") for event in events)
