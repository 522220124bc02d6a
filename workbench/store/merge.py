"""Several runs as one: cells of all of them, and where runs share a cell, each run is a repeat of it.

Of a cell that several runs measured, the record and its stages, links, loads and memory are those of the run whose
latency is the median (the lower one of an even number), so that figures of one row belong together; its interval
spans those of all repeats, and the samples of all stay, numbered by ``repeat``. A simulated cell has no repeats: the
latest run tells it. An ``error`` never displaces a better outcome.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from workbench.store.bucket import send_run
from workbench.store.evolution import unified_table
from workbench.store.files import is_locked, take_lock
from workbench.store.parts import write_part
from workbench.store.progress import append_event
from workbench.store.reader import read_arrow
from workbench.store.run_folder import RunFolder, create_run
from workbench.store.schema import TABLES, arrow_schema

ORIGIN = "_origin"


@dataclass(frozen=True)
class Pooled:
    """Tables of several runs as one; ``repeats`` is how many runs measured the cell that most of them did."""

    tables: dict[str, pa.Table]
    repeats: int


def pool(runs: Sequence[RunFolder], *, tables: Sequence[str] = TABLES) -> Pooled:
    """The tables of ``runs`` as one, by the rule of this module.

    Raises ValueError for the same run twice, and for a measured cell that two different machines share: these are two
    cells, not repeats of one.
    """
    ids = [run.run_id for run in runs]
    if len(set(ids)) < len(ids):
        raise ValueError(f"run {max(ids, key=ids.count)} is given twice; a repeat is a run of its own")
    cells = _joined(runs, "cells")
    told = _told(cells)
    _check_machines(runs, told)
    chosen = _chosen(told)
    result = {}
    for table in tables:
        whole = cells if table == "cells" else _joined(runs, table)
        if table == "cells":
            result[table] = _spanned(whole.take(pa.array(chosen["row"])), chosen)
        elif table == "samples":
            result[table] = _repeats(whole, told)
        else:
            result[table] = _of_chosen(whole, chosen)
    return Pooled(tables=result, repeats=int(chosen["repeats"].max()) if len(chosen) else 0)


def merge_runs(runs: Sequence[RunFolder], *, results_dir: Any, name: str | None = None) -> RunFolder:
    """A new run with what ``runs`` hold, which stay as they are.

    Raises ValueError for fewer than two, for one that is still being written, and as ``pool`` does.
    """
    if len(runs) < 2:
        raise ValueError("merge: name two runs or more")
    for run in runs:
        if is_locked(run.lock_path):
            raise ValueError(f"run {run.run_id} is still being written; wait for its end or stop it")
    pooled = pool(runs)
    first = runs[0].manifest()
    kept = {key: value for key, value in first.items() if key not in ("run_id", "name", "created_at")}
    origin = {"merged_from": [run.run_id for run in runs], "repeats": pooled.repeats}
    merged = create_run(results_dir, name=name or str(first.get("name", "merged")), manifest=kept | origin)
    _write(merged, pooled)
    _keep_plan(runs[0], merged)
    send_run(merged.path)
    return merged


def _write(run: RunFolder, pooled: Pooled) -> None:
    ids = pa.array([run.run_id] * len(pooled.tables["cells"]), pa.string())
    with take_lock(run.lock_path):
        for table in reversed(TABLES):
            rows = pooled.tables[table]
            if table == "cells":
                rows = rows.set_column(rows.column_names.index("run_id"), "run_id", ids)
            if len(rows):
                write_part(run.path, table, 1, rows)
        statuses = pd.Series(pooled.tables["cells"]["status"].to_pylist(), dtype=object).value_counts().to_dict()
        append_event(run.progress_path, {"event": "run_start", "run_id": run.run_id, "total": len(ids)})
        append_event(run.progress_path, {"event": "counts", "counts": statuses})
        append_event(run.progress_path, {"event": "run_end", "status": "finished", **statuses})


def _keep_plan(first: RunFolder, merged: RunFolder) -> None:
    plan = first.path / "plan.jsonl.gz"
    if plan.is_file():
        shutil.copyfile(plan, merged.path / plan.name)


def _joined(runs: Sequence[RunFolder], table: str) -> pa.Table:
    """A table of all runs with the place of the run that each row is from."""
    parts = []
    for place, run in enumerate(runs):
        rows = read_arrow(run, table).table
        parts.append(rows.append_column(ORIGIN, pa.array(np.full(len(rows), place, np.int64))))
    return unified_table(parts, arrow_schema(table))


def _told(cells: pa.Table) -> pd.DataFrame:
    names = ["cell_id", "status", "engine", "device", "latency_us", "latency_ci_low_us", "latency_ci_high_us",
             "num_samples", ORIGIN]  # fmt: skip
    told = cells.select(names).to_pandas().assign(row=np.arange(len(cells)))
    worth = {"ok": 2, "error": 0}
    told["worth"] = told["status"].map(lambda status: worth.get(status, 1))
    return told


def _chosen(told: pd.DataFrame) -> pd.DataFrame:
    """The row that stands for each cell, in the order in which cells first came, with what its repeats span."""
    best = told[told["worth"] == told.groupby("cell_id")["worth"].transform("max")]
    measured = (best["status"] == "ok") & (best["engine"] != "simulate")
    order = best[ORIGIN].where(~measured, best["latency_us"])
    best = best.assign(order=order).sort_values(["cell_id", "order"], kind="stable")
    groups = best.groupby("cell_id")
    place, count = groups.cumcount(), groups["row"].transform("size")
    wanted = ((count - 1) // 2).where(measured.reindex(best.index), count - 1)
    spans = {
        "low": groups["latency_ci_low_us"].transform("min"),
        "high": groups["latency_ci_high_us"].transform("max"),
        "samples": groups["num_samples"].transform("sum", min_count=1),
        "repeats": count,
        "measured": measured,
    }
    chosen = best.assign(**spans)[place == wanted]
    first = told.groupby("cell_id", sort=False)["row"].min()
    return chosen.assign(first=chosen["cell_id"].map(first)).sort_values("first")


def _spanned(rows: pa.Table, chosen: pd.DataFrame) -> pa.Table:
    """The chosen rows with the interval and the number of samples of all their repeats."""
    measured = chosen["measured"].to_numpy(bool)
    for name, column in (("latency_ci_low_us", "low"), ("latency_ci_high_us", "high"), ("num_samples", "samples")):
        own = rows[name].to_pandas()
        values = chosen[column].reset_index(drop=True).where(measured, own)
        array = pa.array(values, from_pandas=True).cast(rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, array)
    return rows.drop_columns([ORIGIN])


def _of_chosen(whole: pa.Table, chosen: pd.DataFrame) -> pa.Table:
    """The rows that belong to the run whose record stands."""
    wanted = chosen.set_index("cell_id")[ORIGIN]
    told = whole.select(["cell_id", ORIGIN]).to_pandas()
    keep = told[ORIGIN] == told["cell_id"].map(wanted)
    return whole.filter(pa.array(keep.to_numpy(bool))).drop_columns([ORIGIN])


def _repeats(samples: pa.Table, told: pd.DataFrame) -> pa.Table:
    """The samples of every ok run of a cell; ``repeat`` numbers runs, and within them what already was a repeat."""
    ok = set(map(tuple, told.loc[told["status"] == "ok", ["cell_id", ORIGIN]].itertuples(index=False)))
    keys = samples.select(["cell_id", ORIGIN, "repeat"]).to_pandas().fillna({"repeat": 0})
    keep = np.array([pair in ok for pair in zip(keys["cell_id"], keys[ORIGIN], strict=True)], dtype=bool)
    keys = keys[keep]
    launch = keys[ORIGIN].astype(int) * (1 + int(keys["repeat"].max() if len(keys) else 0)) + keys["repeat"].astype(int)
    numbers = launch.groupby(keys["cell_id"]).rank(method="dense").astype(int) - 1
    kept = samples.filter(pa.array(keep)).drop_columns([ORIGIN])
    return kept.set_column(kept.column_names.index("repeat"), "repeat", pa.array(numbers.to_numpy(np.int64)))


def _check_machines(runs: Sequence[RunFolder], told: pd.DataFrame) -> None:
    measured = told[(told["status"] == "ok") & (told["engine"] != "simulate")]
    shared = measured[measured.duplicated("cell_id", keep=False)]
    origins = sorted(shared[ORIGIN].unique())
    machines = {_machine(runs[place]): runs[place].run_id for place in origins}
    if len(machines) > 1:
        (one, first), (other, second), *_ = machines.items()
        raise ValueError(
            f"runs {first} ({one}) and {second} ({other}) measured the same cells on different machines: no repeats; "
            "compare them instead"
        )


def _machine(run: RunFolder) -> str:
    """Processor and GPUs by name; ``unknown`` for a run that does not say."""
    machine = run.manifest().get("machine") or {}
    cpu = machine.get("cpu") or {}
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or []]
    return ", ".join(
        [str(cpu.get("name", "unknown processor")), *(f"{gpus.count(n)}x {n}" for n in dict.fromkeys(gpus))]
    )
