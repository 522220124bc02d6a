"""Bringing a run back from a file: so far the JSON and Parquet that this workbench exports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec.record import COLUMNS, TABLE_COLUMNS, Outcome, Record
from workbench.store.bucket import send_run
from workbench.store.progress import append_event
from workbench.store.run_folder import RunFolder, create_run
from workbench.store.strict_json import frame_rows
from workbench.store.writer import Writer

EXPORT_FORM = "moe-workbench-run"
MANIFEST_KEY = b"moe-workbench-manifest"
TAKES = (
    "import takes what `moe-workbench export RUN --format json` or `--format parquet` wrote; "
    "formats of other projects are not read yet"
)


def import_file(path: Path, *, results_dir: Path) -> RunFolder:
    """A new run folder with the rows of an exported file.

    Raises ValueError, before anything is written, for a file that is not such an export.
    """
    manifest, tables = _read(path)
    outcomes = [_outcome(path, row, tables) for row in tables["cells"]]
    origin = {"imported_from": path.name, "original_run_id": manifest.get("run_id")}
    kept = {key: value for key, value in manifest.items() if key not in ("run_id", "name", "created_at")}
    run = create_run(results_dir, name=str(manifest.get("name", path.stem)), manifest=kept | origin)
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    _tell(run, [outcome.record for outcome in outcomes])
    send_run(run.path)
    return run


def _tell(run: RunFolder, records: list[Record]) -> None:
    """The progress of a run that is whole, so that lists show it as such."""
    total = len(records)
    append_event(run.progress_path, {"event": "run_start", "run_id": run.run_id, "total": total})
    for done, record in enumerate(records, start=1):
        told = {name: getattr(record, name) for name in ("cell_id", "status", "reason", "latency_us", "engine")}
        append_event(run.progress_path, {"event": "cell", **told, "done": done, "total": total})
    append_event(run.progress_path, {"event": "run_end", "status": "finished"})


def _read(path: Path) -> tuple[Mapping[str, Any], dict[str, list[dict[str, Any]]]]:
    if not path.is_file():
        raise ValueError(f"{path}: {'is not a file' if path.exists() else 'no such file'}; {TAKES}")
    match path.suffix.lower():
        case ".json":
            return _read_json(path)
        case ".parquet":
            return _read_parquet(path)
    raise ValueError(f"{path}: not a .json or .parquet file; {TAKES}")


def _read_json(path: Path) -> tuple[Mapping[str, Any], dict[str, list[dict[str, Any]]]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {TAKES}") from error
    if not isinstance(document, dict) or document.get("form") != EXPORT_FORM:
        raise ValueError(f"{path}: has no `form: {EXPORT_FORM}`; {TAKES}")
    tables = {name: document.get(name, []) for name in ("cells", *TABLE_COLUMNS)}
    return document.get("manifest", {}), tables


def _read_parquet(path: Path) -> tuple[Mapping[str, Any], dict[str, list[dict[str, Any]]]]:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}); {TAKES}") from error
    if MANIFEST_KEY not in (table.schema.metadata or {}) or "status" not in table.column_names:
        raise ValueError(f"{path}: not the cells of an exported run; {TAKES}")
    return json.loads(table.schema.metadata[MANIFEST_KEY]), {"cells": frame_rows(table.to_pandas())}


def _outcome(path: Path, row: Mapping[str, Any], tables: Mapping[str, list[dict[str, Any]]]) -> Outcome:
    extra = sorted(set(row) - set(COLUMNS))
    if extra:
        raise ValueError(f"{path}: columns {', '.join(extra)} are not known to this version")
    lacking = [name for name in ("cell_id", "status", "engine") if not row.get(name)]
    if lacking:
        raise ValueError(f"{path}: a cell has no {', '.join(lacking)}")
    others = {
        name: [line for line in tables.get(name, []) if line.get("cell_id") == row["cell_id"]] for name in TABLE_COLUMNS
    }
    return Outcome(record=Record(**{**row, "run_id": None}), tables=others)
