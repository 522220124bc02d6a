"""Where what was read from a results folder is kept for the next time: the user's cache, never the folder itself.

So a store that cannot be written is as fast as any, and nothing but runs lies in it. All of it can be deleted at any
time; it is made again when it is missing, cut, of another version or older than what it was made of.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from workbench.store.files import write_atomically
from workbench.store.strict_json import to_json

Stamp = list[list[Any]]


def cache_folder(results_dir: Path) -> Path | None:
    """The folder for what is kept of ``results_dir``, made if need be; None where the user has none to write."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moe-workbench"
    folder = root / hashlib.sha256(str(results_dir.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:20]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def read_kept(path: Path, version: str) -> dict[str, Any]:
    """What was kept under ``version``; nothing when it is missing, cut or of another version."""
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict) or kept.get("version") != version or not isinstance(kept.get("runs"), dict):
        return {}
    return kept["runs"]


def keep(path: Path, version: str, runs: dict[str, Any]) -> None:
    """Keep what was read, whole or not at all; a full or read-only disk costs only the time of reading again."""
    try:
        write_atomically(path, to_json({"version": version, "runs": runs}).encode("utf-8"))
    except OSError:
        return


def stamp_of(*paths: Path) -> Stamp:
    """Changes when one of the files, or of the files in one of the folders, is written, made or taken away."""
    found: Stamp = []
    for path in paths:
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name) if path.is_dir() else [path]
            for entry in entries:
                state = entry.stat()
                found.append([entry.name, state.st_size, state.st_mtime_ns])
        except FileNotFoundError:
            found.append([path.name, -1, 0])
    return found
