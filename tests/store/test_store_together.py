"""Two writers and a reader on one store: nothing lost, nothing torn.

``STORE_SECONDS=60`` makes it the long form.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from workbench.store import catalog as catalog_room
from workbench.store.catalog import open_catalog
from workbench.store.damage import store_problems
from workbench.store.query import count_cells, select_cells
from workbench.store.reader import read_tables
from workbench.store.run_folder import list_runs, open_run

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("STORE_SECONDS", "1"))
CELLS, SAMPLES = 40, 6

WRITER = """
import json, sys, time
from tests.sample_run import make_cell, measured_outcome
from workbench.store.progress import append_event
from workbench.store.run_folder import create_run
from workbench.store import writer as room
room.SECONDS_PER_PART = 0.05
folder, name, cells, samples = sys.argv[1], sys.argv[2], int(sys.argv[4]), int(sys.argv[5])
until = time.time() + float(sys.argv[3])
outcomes = [measured_outcome(make_cell(tokens=n + 1), samples=samples) for n in range(cells)]
written = []
while time.time() < until or len(written) < 2:
    run = create_run(folder, name=name, manifest={})
    append_event(run.progress_path, {"event": "run_start", "total": cells})
    with room.Writer(run) as writer:
        for done, outcome in enumerate(outcomes, start=1):
            writer.add(outcome)
            event = {"event": "cell", "cell_id": outcome.record.cell_id, "status": "ok", "done": done}
            append_event(run.progress_path, event)
            time.sleep(0.005)
    append_event(run.progress_path, {"event": "run_end", "status": "finished"})
    written.append(run.run_id)
print(json.dumps(written))
"""


def test_two_writers_and_a_reader_lose_and_tear_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog_room, "WORTH_KEEPING", 4)
    store = tmp_path / "results"
    store.mkdir()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store), name, str(SECONDS), str(CELLS), str(SAMPLES)],
            cwd=ROOT, stdout=subprocess.PIPE,
        )
        for name in ("left", "right")
    ]  # fmt: skip
    seen: dict[str, int] = {}
    looks = 0
    while any(writer.poll() is None for writer in writers):
        looks += 1
        _look(store, seen)
        time.sleep(0.15)
    written = [run_id for writer in writers for run_id in json.loads(writer.communicate()[0])]
    assert all(writer.returncode == 0 for writer in writers)
    assert len(written) >= 4
    assert looks >= 3
    infos = {info.run_id: info for info in list_runs(store)}
    assert set(infos) == set(written)
    assert {info.status for info in infos.values()} == {"finished"}
    assert {info.counts["ok"] for info in infos.values()} == {CELLS}
    assert count_cells(open_catalog(store)) == CELLS * len(written)
    assert store_problems(store) == []
    for run_id in written[:3]:
        tables = read_tables(open_run(store, run_id))
        assert len(tables["samples"].frame) == CELLS * SAMPLES * 4
    print(f"{looks} looks at {len(written)} runs")


def _look(store: Path, seen: dict[str, int]) -> None:
    """Everything a reader does; what was once there must be there again, and whole."""
    infos = list_runs(store)
    catalog = open_catalog(store)
    assert catalog.problems == ()
    counts = select_cells(catalog, columns=["run_id", "latency_us"]).groupby("run_id")["latency_us"].count().to_dict()
    for run_id, number in seen.items():
        assert counts.get(run_id, 0) >= number
    seen |= counts
    assert set(counts) <= {info.run_id for info in list_runs(store)}
    if infos:
        tables = read_tables(open_run(store, infos[-1].run_id))
        assert not any(result.bad_files for result in tables.values())
        cells, samples = tables["cells"].frame, tables["samples"].frame
        assert set(cells["cell_id"]) <= set(samples["cell_id"])
        assert (samples.groupby("cell_id").size() == SAMPLES * 4).all()
