"""A store of many runs, made in seconds: some template runs written for real, their files then copied with ids of
their own."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.sample_run import H200, SPEED, make_cell, measured_outcome, simulated_outcome
from workbench.store.progress import append_event
from workbench.store.run_folder import create_run
from workbench.store.writer import Writer

TEMPLATES = 4


def build_store(folder: Path, *, runs: int = 500, cells: int = 400) -> None:
    """``runs`` run folders of ``cells`` cells each below ``folder``; every fourth is of another suite and model."""
    work = folder / ".templates"
    made = [_template(work, number, cells) for number in range(TEMPLATES)]
    for number in range(runs):
        source, manifest = made[number % TEMPLATES]
        run_id = f"2026{1 + number // 280:02d}{1 + number // 10 % 28:02d}T{number % 10:02d}0000Z-suite-{number:06x}"
        target = folder / run_id
        for table in ("cells", "samples"):
            (target / table).mkdir(parents=True)
            shutil.copyfile(source / table / "part-000001.parquet", target / table / "part-000001.parquet")
        shutil.copyfile(source / "progress.jsonl", target / "progress.jsonl")
        (target / "manifest.json").write_text(json.dumps(manifest | {"run_id": run_id}), encoding="utf-8")
    shutil.rmtree(work)


def _template(work: Path, number: int, cells: int) -> tuple[Path, dict]:
    """A run of the real Writer, then filled up to ``cells`` rows: ids and tokens of their own, all else alike."""
    run = create_run(work, name=f"suite-{number}", manifest={"scenario_text": "name: suite\n" * 50})
    outcomes = []
    for precision in SPEED:
        measured = make_cell(precision=precision, hardware=H200, model=f"model-{number}")
        outcomes.append(measured_outcome(measured, samples=30, repeats=3))
        priced = make_cell(engine="simulate", precision=precision, hardware=H200, model=f"model-{number}")
        outcomes.append(simulated_outcome(priced, base_us=100.0 * SPEED[precision]))
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    for table in ("cells", "samples"):
        (part,) = (run.path / table).iterdir()
        rows = pq.read_table(part)
        grown = pa.concat_tables([_grown(rows, copy) for copy in range(-(-cells // len(outcomes)))])
        part.unlink()
        pq.write_table(grown.slice(0, cells) if table == "cells" else grown, run.path / table / "part-000001.parquet")
    ids = pq.read_table(run.path / "cells" / "part-000001.parquet", columns=["cell_id"])["cell_id"].to_pylist()
    append_event(run.progress_path, {"event": "run_start", "run_id": run.run_id, "total": cells})
    event = {"event": "cell", "status": "ok", "latency_us": 123.4, "engine": "measure", "label": "x" * 60}
    lines = "".join(json.dumps({**event, "cell_id": cell_id}) + "\n" for cell_id in ids)
    run.progress_path.write_text(run.progress_path.read_text() + lines)
    append_event(run.progress_path, {"event": "run_end", "status": "finished"})
    return run.path, json.loads((run.path / "manifest.json").read_text())


def _grown(rows: pa.Table, copy: int) -> pa.Table:
    ids = pa.array([f"{cell}-{copy:03d}" for cell in rows["cell_id"].to_pylist()])
    rows = rows.set_column(rows.column_names.index("cell_id"), "cell_id", ids)
    if "tokens_per_rank" not in rows.column_names:
        return rows
    place = rows.column_names.index("tokens_per_rank")
    return rows.set_column(place, "tokens_per_rank", pa.array([copy + 1] * len(rows), pa.int64()))
