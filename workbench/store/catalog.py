"""The cells of all runs of a results folder, ready to be asked: a few Parquet segments in the user's cache.

A segment holds the counting rows of some runs, without ``cell_json``, each under the name of the folder it lies in.
Only runs whose files changed are read again, into a new segment; the index says which segment counts for which run.
Small stores are read as they are and kept nowhere.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec.record import COLUMNS
from workbench.store.cache import cache_folder, keep, read_kept, stamp_of
from workbench.store.evolution import unified_table
from workbench.store.parts import foreign_files
from workbench.store.progress import torn_lines
from workbench.store.reader import read_arrow
from workbench.store.run_folder import WORTH_KEEPING, RunFolder, run_folders
from workbench.store.schema import arrow_schema
from workbench.store.strict_json import to_json

INDEX = "cells.json"
LEFT_OUT = ("cell_json",)
"""Columns that are as large as all others together, and asked for one run at a time."""
VERSION = to_json([1, *COLUMNS])
MOST_SEGMENTS = 12
SEGMENT_RUNS = 128
STALE_S = 600.0
"""Age from which on a segment that no index names may be deleted: no reader that found it is still at it."""


@dataclass(frozen=True)
class Catalog:
    """Where the cells are: in Parquet files, of which those runs count that ``runs_of`` names, or in ``table``.

    ``problems`` names every file that was passed over, as ``run/file: why``.
    """

    runs_of: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    table: pa.Table | None = None
    problems: tuple[str, ...] = ()


def open_catalog(results_dir: Path | str) -> Catalog:
    """The catalog of a results folder, brought up to date with what lies there now."""
    results = Path(results_dir)
    runs = run_folders(results)
    folder = cache_folder(results) if len(runs) >= WORTH_KEEPING else None
    if folder is None:
        found = {run.run_id: _read(run) for run in runs}
        table = unified_table([cells for cells, _ in found.values()], _schema())
        return Catalog(table=table, problems=_problems({run_id: told for run_id, (_, told) in found.items()}))
    return _kept_catalog(folder, runs)


def _kept_catalog(folder: Path, runs: Sequence[RunFolder]) -> Catalog:
    kept = read_kept(folder / INDEX, VERSION)
    stamps = {run.run_id: stamp_of(run.path / "cells", run.progress_path) for run in runs}
    index = {
        run_id: entry
        for run_id, entry in kept.items()
        if stamps.get(run_id) == entry["stamp"] and (folder / entry["segment"]).is_file()
    }
    if len({entry["segment"] for entry in index.values()}) > MOST_SEGMENTS:
        index = _compacted(folder, index)
    missing = [run for run in runs if run.run_id not in index]
    for start in range(0, len(missing), SEGMENT_RUNS):
        index |= _segment(folder, missing[start : start + SEGMENT_RUNS], stamps)
    if index != kept:
        keep(folder / INDEX, VERSION, index)
        _sweep(folder, {entry["segment"] for entry in index.values()})
    runs_of: dict[Path, list[str]] = {}
    for run_id, entry in index.items():
        runs_of.setdefault(folder / entry["segment"], []).append(run_id)
    return Catalog(runs_of=runs_of, problems=_problems({run_id: entry["problems"] for run_id, entry in index.items()}))


def _segment(folder: Path, runs: Sequence[RunFolder], stamps: Mapping[str, Any]) -> dict[str, Any]:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(_read, runs))
    name = _write(folder, [cells for cells, _ in found])
    told = zip(runs, found, strict=True)
    return {
        run.run_id: {"stamp": stamps[run.run_id], "segment": name, "problems": problems} for run, (_, problems) in told
    }


def _compacted(folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """All live rows in one segment."""
    segments: dict[str, list[str]] = {}
    for run_id, entry in index.items():
        segments.setdefault(entry["segment"], []).append(run_id)
    live = [pq.read_table(folder / name, filters=[("run_id", "in", run_ids)]) for name, run_ids in segments.items()]
    name = _write(folder, live)
    return {run_id: entry | {"segment": name} for run_id, entry in index.items()}


def _write(folder: Path, tables: Sequence[pa.Table]) -> str:
    name = f"cells-{secrets.token_hex(6)}.parquet"
    beside = folder / f".{name}.tmp"
    pq.write_table(unified_table(tables, _schema()), beside, compression="zstd", row_group_size=50_000)
    beside.rename(folder / name)
    return name


def _sweep(folder: Path, named: set[str]) -> None:
    for path in [*folder.glob("cells-*.parquet"), *folder.glob(".cells-*.tmp")]:
        if path.name not in named and time.time() - path.stat().st_mtime > STALE_S:
            path.unlink(missing_ok=True)


def _read(run: RunFolder) -> tuple[pa.Table, list[str]]:
    """The counting rows of a run under its folder's name, and what of it could not be read."""
    cells = read_arrow(run, "cells", without=LEFT_OUT)
    told = [f"{name}: cut or empty" for name in cells.bad_files]
    told += [f"{name}: foreign" for name in foreign_files(run.path, "cells")]
    told += [f"progress.jsonl line {number}: torn" for number in torn_lines(run.progress_path)]
    table = cells.table
    place = table.column_names.index("run_id")
    return table.set_column(place, "run_id", pa.array([run.run_id] * len(table), pa.string())), told


def _schema() -> pa.Schema:
    return pa.schema([field for field in arrow_schema("cells") if field.name not in LEFT_OUT])


def _problems(told: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(f"{run_id}/{problem}" for run_id in sorted(told) for problem in told[run_id])
