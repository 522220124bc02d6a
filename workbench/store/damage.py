"""A quick look over a whole store for what is cut, empty or foreign, without reading any of it."""

import os
from pathlib import Path

from workbench.store.parts import foreign_files, part_numbers, part_path
from workbench.store.run_folder import RunFolder, foreign_entries, run_folders
from workbench.store.schema import TABLES

MAGIC = b"PAR1"


def store_problems(results_dir: Path | str) -> list[str]:
    """What lies in a results folder that is passed over, as ``run/file: why``; empty for a sound store.

    Looks at the ends of files only: a file damaged in its middle is named by the one who reads it.
    """
    foreign = [f"{name}: no run" for name in foreign_entries(results_dir)]
    return [*foreign, *(f"{run.run_id}/{why}" for run in run_folders(results_dir) for why in run_problems(run))]


def run_problems(run: RunFolder) -> list[str]:
    """The same for one run, by names relative to its folder."""
    found = []
    try:
        run.manifest()
    except ValueError:
        found.append("manifest.json: unreadable")
    for table in TABLES:
        paths = [part_path(run.path, table, number) for number in part_numbers(run.path, table)]
        found += [f"{table}/{path.name}: {why}" for path in paths if (why := _damage(path))]
        found += [f"{name}: foreign" for name in foreign_files(run.path, table)]
    if _tail(run.progress_path, 1) not in (b"\n", b"", None):
        found.append("progress.jsonl: torn at its end")
    return found


def _damage(path: Path) -> str:
    """Why a Parquet file cannot be whole; a file gone meanwhile was compacted."""
    tail = _tail(path, len(MAGIC))
    if tail == b"":
        return "empty"
    return "" if tail in (MAGIC, None) else "cut"


def _tail(path: Path, size: int) -> bytes | None:
    """The last bytes of a file, None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        whole = os.fstat(descriptor).st_size
        return os.pread(descriptor, size, max(0, whole - size))
    finally:
        os.close(descriptor)
