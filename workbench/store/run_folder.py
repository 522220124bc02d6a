"""A run's folder: creating it, finding it again, and listing what there is."""

import difflib
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.store.cache import cache_folder, keep, read_kept, stamp_of
from workbench.store.files import is_locked, write_atomically
from workbench.store.progress import read_events
from workbench.store.strict_json import to_json
from workbench.store.text import readable_text, safe_name

MANIFEST = "manifest.json"
OURS = ("validation.parquet",)
SHORTEST_PART = 3
WORTH_KEEPING = 16
"""Runs from which on reading them all anew takes longer than a person likes to wait."""
INFOS = "runs.json"
INFO_VERSION = "1"


@dataclass(frozen=True)
class RunFolder:
    """Where a run lies; ``run_id`` is the folder's name."""

    path: Path
    run_id: str

    @property
    def progress_path(self) -> Path:
        return self.path / "progress.jsonl"

    @property
    def stop_path(self) -> Path:
        """The driver ends the run when this file appears."""
        return self.path / "stop"

    @property
    def lock_path(self) -> Path:
        return self.path / ".lock"

    def manifest(self) -> dict[str, Any]:
        """The manifest as written. Raises ValueError when it is cut or missing."""
        try:
            return json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path / MANIFEST}: unreadable manifest ({error})") from error


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One line of ``moe-workbench runs``; ``status`` is running, finished, stopped, failed or unfinished (killed)."""

    run_id: str
    path: str
    name: str
    created_at: str | None
    status: str
    total: int | None
    counts: Mapping[str, int] = field(default_factory=dict)


def create_run(results_dir: Path | str, *, name: str, manifest: Mapping[str, Any]) -> RunFolder:
    """Make ``<UTC time>-<safe name>-<short id>`` with its manifest, before any work is done.

    Raises ValueError when the folder cannot be made or written.
    """
    now = datetime.now(UTC)
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{safe_name(name)}-{secrets.token_hex(3)}"
    run = RunFolder(path=Path(results_dir) / run_id, run_id=run_id)
    head = {"run_id": run_id, "name": readable_text(name), "created_at": now.isoformat(timespec="seconds")}
    try:
        run.path.mkdir(parents=True)
        write_atomically(run.path / MANIFEST, to_json(head | dict(manifest), indent=2).encode("utf-8"))
    except OSError as error:
        message = f"results folder {results_dir}: cannot be written ({error.strerror or error}); choose another"
        raise ValueError(f"{message} with --results DIR") from error
    return run


def open_run(results_dir: Path | str, reference: str) -> RunFolder:
    """The run that an id, a unique part of one, a path or ``latest`` means; a whole name goes before a part.

    Raises ValueError that lists the nearest runs when there is none or more than one.
    """
    as_path = Path(reference)
    if (as_path / MANIFEST).is_file():
        return RunFolder(path=as_path, run_id=as_path.resolve().name)
    runs = run_folders(results_dir)
    if not runs:
        raise ValueError(f"no run {reference!r}: {results_dir} holds no runs yet; start one with moe-workbench run")
    if reference == "latest":
        return runs[-1]
    found = next(filter(None, ([run for run in runs if means(run, reference)] for means in MEANINGS)), [])
    if len(found) == 1:
        return found[0]
    ids = [run.run_id for run in found or runs]
    nearest = difflib.get_close_matches(reference, ids, n=5, cutoff=0.3) or ids[-5:]
    what = f"{len(found)} runs match {reference!r}" if found else f"no run {reference!r} in {results_dir}"
    raise ValueError(f"{what}; nearest: {', '.join(nearest)}; `latest` means {runs[-1].run_id}")


def list_runs(results_dir: Path | str) -> list[RunInfo]:
    """All runs of a results folder, oldest first; a missing folder has none.

    What the files of many runs said is kept in the user's cache, and read again only of runs whose files changed.
    """
    runs = run_folders(results_dir)
    folder = cache_folder(Path(results_dir)) if len(runs) >= WORTH_KEEPING else None
    kept = read_kept(folder / INFOS, INFO_VERSION) if folder else {}
    fresh = {}
    for run in runs:
        stamp = stamp_of(run.path / MANIFEST, run.progress_path)
        known = kept.get(run.run_id)
        told = known["info"] if known and known["stamp"] == stamp else asdict(_read_info(run))
        fresh[run.run_id] = {"stamp": stamp, "info": told}
    if folder and fresh != kept:
        keep(folder / INFOS, INFO_VERSION, fresh)
    return [_live(run, RunInfo(**fresh[run.run_id]["info"])) for run in runs]


def run_info(run: RunFolder) -> RunInfo:
    """Name, state and counts of a run, from its manifest and its progress file."""
    return _live(run, _read_info(run))


def foreign_entries(results_dir: Path | str) -> list[str]:
    """What lies in a results folder and is no run: files, and folders without a manifest.

    Hidden ones are let be, and so are folders that hold runs themselves, and what `validate` writes.
    """
    folder = Path(results_dir)
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name[0] != "." and entry.name not in OURS)
    strange = [folder / name for name in names if not (folder / name / MANIFEST).is_file()]
    return [path.name for path in strange if not any(path.glob(f"*/{MANIFEST}"))]


def _live(run: RunFolder, info: RunInfo) -> RunInfo:
    """What was read of a run, with where it lies and whether a process writes it right now."""
    status = "running" if is_locked(run.lock_path) else info.status
    return replace(info, run_id=run.run_id, path=str(run.path), status=status)


def _read_info(run: RunFolder) -> RunInfo:
    try:
        manifest = run.manifest()
    except ValueError:
        manifest = {}
    events, _ = read_events(run.progress_path)
    cells = {event.get("cell_id"): str(event.get("status")) for event in events if event.get("event") == "cell"}
    told = [event["counts"] for event in events if event.get("event") == "counts"]
    starts = [event for event in events if event.get("event") == "run_start"]
    last = events[-1] if events else {}
    ended = str(last.get("status")) if last.get("event") == "run_end" else "unfinished"
    return RunInfo(
        run_id=run.run_id,
        path=str(run.path),
        name=str(manifest.get("name", "(manifest unreadable)")),
        created_at=manifest.get("created_at"),
        status=ended,
        total=starts[-1].get("total") if starts else None,
        counts=dict(Counter(cells.values())) or (told[-1] if told else {}),
    )


def run_folders(results_dir: Path | str) -> list[RunFolder]:
    """The runs of a results folder, oldest first, unread. Raises ValueError when it is no folder."""
    results_dir = Path(results_dir)
    if not results_dir.is_dir():
        if results_dir.exists():
            raise ValueError(f"results folder {results_dir}: is not a folder; choose another with --results DIR")
        return []
    names = sorted(entry.name for entry in os.scandir(results_dir) if entry.is_dir() and entry.name[0] != ".")
    runs = [RunFolder(path=results_dir / name, run_id=name) for name in names]
    return [run for run in runs if (run.path / MANIFEST).is_file()]


def _is(run: RunFolder, reference: str) -> bool:
    return run.run_id == reference


def _means(run: RunFolder, reference: str) -> bool:
    """By its beginning, its short id or its name."""
    _, _, rest = run.run_id.partition("-")
    name, _, short_id = rest.rpartition("-")
    if not reference:
        return False
    return run.run_id.startswith(reference) or short_id.startswith(reference) or name == safe_name(reference)


def _holds(run: RunFolder, reference: str) -> bool:
    return len(reference) >= SHORTEST_PART and reference in run.run_id


MEANINGS = (_is, _means, _holds)
"""What a reference may mean, the first that finds a run wins."""
