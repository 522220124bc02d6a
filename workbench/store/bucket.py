"""A results folder that lies in a bucket or on another host: any URL that fsspec knows, such as ``s3://team/results``.

It is mirrored into the user's cache. Looking at it brings what lists show, that is manifests, progress and cells;
another table comes when it is first read. Runs are written in the mirror and sent when they are whole, the manifest
last, so nobody sees half of one. Each run has a folder of its own, so machines never write the same file. Runs made
here that were never sent stay in the mirror.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from workbench.store.files import write_atomically
from workbench.store.strict_json import to_json

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

ORIGIN, KNOWN = ".origin", ".remote.json"
SHOWN = ("manifest.json", "progress.jsonl", "plan.jsonl.gz", "cells")
UNSENT = (".lock", "stop")
STAMPS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
CONNECTIONS = 8


def results_path(place: str | Path) -> Path:
    """The folder that ``--results`` means: itself, or for a URL its mirror, brought up to date.

    Raises ValueError when the URL cannot be read.
    """
    text = str(place)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    if "://" not in text:
        return Path(place)
    mirror = _mirror(text)
    mirror.mkdir(parents=True, exist_ok=True)
    write_atomically(mirror / ORIGIN, text.encode("utf-8"))
    _pull(text, mirror)
    return mirror


def place_of(results_dir: Path) -> str:
    """What to write after ``--results`` to get this folder: the URL of a mirror, else its path."""
    return _origin(results_dir / "any run") or str(results_dir)


def fetch_table(run_path: Path, table: str) -> None:
    """Bring a table of a mirrored run; nothing to do for a run that lies here."""
    origin = _origin(run_path)
    if origin is None or table in SHOWN:
        return
    files, root = _connect(origin)
    wanted = {
        name: path for name, (path, _) in _listed(files, root, f"{run_path.name}/{table}").items()
        if not (run_path.parent / name).exists()
    }  # fmt: skip
    _bring(files, wanted, run_path.parent)


def send_run(run_path: Path) -> None:
    """Copy a run of a mirror to where it belongs; nothing to do for a run that lies here.

    Raises ValueError when the place cannot be written; the run is then whole in the mirror, and sent by the next try.
    """
    origin = _origin(run_path)
    if origin is None:
        return
    files, root = _connect(origin)
    local = [path for path in run_path.rglob("*") if path.is_file() and path.name not in UNSENT]
    local.sort(key=lambda path: (path.name == "manifest.json", path.relative_to(run_path).parts[0] == "cells"))
    names = {path.relative_to(run_path.parent).as_posix() for path in local}
    try:
        for path in local:
            target = f"{root}/{path.relative_to(run_path.parent).as_posix()}"
            files.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
            files.pipe_file(target, path.read_bytes())
        there = _listed(files, root, run_path.name)
        for name in set(there) - names:
            if (run_path.parent / name).parent.is_dir() and "part-" in name:
                files.rm_file(there.pop(name)[0])
    except OSError as error:
        raise ValueError(f"{origin}: cannot be written ({error}); the run is whole in {run_path}") from error
    _learn(run_path.parent, _known(run_path.parent) | {name: stamp for name, (_, stamp) in there.items()})


def remove_remote(run_path: Path) -> None:
    """Delete a mirrored run where it belongs."""
    origin = _origin(run_path)
    if origin is None:
        return
    files, root = _connect(origin)
    target = f"{root}/{run_path.name}"
    if files.exists(target):
        files.rm(target, recursive=True)


def _mirror(url: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moe-workbench" / "mirrors"
    return root / hashlib.sha256(url.rstrip("/").encode("utf-8")).hexdigest()[:20]


def _origin(run_path: Path) -> str | None:
    marker = run_path.parent / ORIGIN
    return marker.read_text(encoding="utf-8") if marker.is_file() else None


def _connect(url: str) -> "tuple[AbstractFileSystem, str]":
    """The file system of a URL and the path in it. Raises ValueError for a kind that is not known or installed."""
    from fsspec.core import url_to_fs

    try:
        files, root = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ValueError(f"--results {url}: {error}") from error
    return files, root.rstrip("/")


def _listed(files: "AbstractFileSystem", root: str, below: str = "") -> dict[str, tuple[str, list[Any]]]:
    """Files by name relative to the store: their path, and what changes when they do."""
    files.invalidate_cache()
    where = f"{root}/{below}" if below else root
    try:
        found = files.find(where, detail=True)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(f"{where}: cannot be read ({error})") from error
    entries = {}
    for path, info in found.items():
        name = path.removeprefix(root).lstrip("/")
        if ".." not in PurePosixPath(name).parts:
            entries[name] = (path, [info.get("size"), *(str(info[key]) for key in STAMPS if key in info)])
    return entries


def _pull(url: str, mirror: Path) -> None:
    files, root = _connect(url)
    there, known = _listed(files, root), _known(mirror)
    changed = {name: path for name, (path, stamp) in there.items() if known.get(name) != stamp}
    for name in [*(set(known) - set(there)), *(name for name in changed if not _is_shown(name))]:
        (mirror / name).unlink(missing_ok=True)
    _bring(files, {name: path for name, path in changed.items() if _is_shown(name)}, mirror)
    for folder in {mirror / PurePosixPath(name).parts[0] for name in set(known) - set(there)}:
        _drop_empty(folder)
    _learn(mirror, {name: stamp for name, (_, stamp) in there.items()})


def _is_shown(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return len(parts) > 1 and parts[1] in SHOWN


def _known(mirror: Path) -> dict[str, list[Any]]:
    try:
        known = json.loads((mirror / KNOWN).read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _learn(mirror: Path, known: Mapping[str, list[Any]]) -> None:
    """What lies in the bucket as of now; what is known and then no longer there was taken away by somebody."""
    write_atomically(mirror / KNOWN, to_json(known).encode("utf-8"))


def _bring(files: "AbstractFileSystem", wanted: Mapping[str, str], mirror: Path) -> None:
    """Copy files into the mirror, cells before the manifests that make them visible; one gone meanwhile is let be."""

    def bring(name: str) -> None:
        try:
            data = files.cat_file(wanted[name])
        except FileNotFoundError:
            return
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(mirror / name, data)

    heads = [name for name in wanted if name.endswith("/manifest.json")]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        _all(pool.map(bring, [name for name in wanted if name not in heads]))
        _all(pool.map(bring, heads))


def _all(done: Iterable[None]) -> None:
    for _ in done:
        pass


def _drop_empty(folder: Path) -> None:
    """A run of which nothing is left but empty folders and its lock."""
    if not folder.is_dir() or any(path.is_file() and path.name not in UNSENT for path in folder.rglob("*")):
        return
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
