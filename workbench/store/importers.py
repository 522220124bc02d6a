"""Bringing a run in from a file: the JSON and Parquet that this workbench exports, and results of other projects."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec.record import COLUMNS, TABLE_COLUMNS, Outcome, Record
from workbench.store.bucket import send_run
from workbench.store.peers import FORMS, form_of
from workbench.store.peers.row import Told
from workbench.store.progress import append_event
from workbench.store.run_folder import RunFolder, create_run
from workbench.store.strict_json import frame_rows
from workbench.store.text import safe_name
from workbench.store.writer import Writer

EXPORT_FORM = "moe-workbench-run"
MANIFEST_KEY = b"moe-workbench-manifest"
TAKES = "import takes what `moe-workbench export RUN --format json` or `--format parquet` wrote, and " + ", ".join(
    form.title for form in FORMS.values()
)
SOURCE = "source"
"""Folder of an imported run that holds the file it was made from, as it was."""


def import_file(path: Path, *, results_dir: Path, name: str | None = None, told: Told | None = None) -> RunFolder:
    """A new run folder with the rows of a file, whose form is recognised by what it holds; the file is kept beside.

    ``told`` are conditions that a file of another project leaves open, such as ``{"hardware": "h200-sxm"}``.
    Raises ValueError, before anything is written, for a file of no form that is known.
    """
    manifest, outcomes = _read(path, told or {})
    origin = {"imported_from": path.name, "original_run_id": manifest.get("run_id"), "told": dict(told or {})}
    kept = {key: value for key, value in manifest.items() if key not in ("run_id", "name", "created_at")}
    title = name or str(manifest.get("name", path.stem))
    run = create_run(results_dir, name=title, manifest=kept | origin)
    (run.path / SOURCE).mkdir()
    shutil.copyfile(path, run.path / SOURCE / safe_name(path.name))
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


def _read(path: Path, told: Told) -> tuple[Mapping[str, Any], list[Outcome]]:
    """What is said of the run, and its cells: each once, so that a later line of the same setting counts."""
    if not path.is_file():
        raise ValueError(f"{path}: {'is not a file' if path.exists() else 'no such file'}; {TAKES}")
    if path.suffix.lower() == ".parquet":
        return _exported(path, _read_parquet(path), told)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason}); {TAKES}") from error
    if form := form_of(text):
        outcomes = {outcome.record.cell_id: outcome for outcome in form.read(text, path, told)}
        return {"form": form.title}, list(outcomes.values())
    if path.suffix.lower() != ".json":
        raise ValueError(f"{path}: of no form that is known; {TAKES}")
    return _exported(path, _read_json(path, text), told)


Tables = dict[str, list[dict[str, Any]]]


def _exported(
    path: Path, found: tuple[Mapping[str, Any], Tables], told: Told
) -> tuple[Mapping[str, Any], list[Outcome]]:
    if told:
        raise ValueError(f"{path}: an exported run says all itself; --set belongs to results of other projects")
    manifest, tables = found
    return manifest, [_outcome(path, row, tables) for row in tables["cells"]]


def _read_json(path: Path, text: str) -> tuple[Mapping[str, Any], Tables]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {TAKES}") from error
    if not isinstance(document, dict) or document.get("form") != EXPORT_FORM:
        raise ValueError(f"{path}: has no `form: {EXPORT_FORM}`; {TAKES}")
    tables = {name: document.get(name, []) for name in ("cells", *TABLE_COLUMNS)}
    return document.get("manifest", {}), tables


def _read_parquet(path: Path) -> tuple[Mapping[str, Any], Tables]:
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
