"""Taking old runs away."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from workbench.store.bucket import remove_remote
from workbench.store.files import take_lock
from workbench.store.run_folder import RunFolder, RunInfo, list_runs

GONE = ".gone-"


def runs_beyond(results_dir: Path | str, *, keep: int, name: str | None = None) -> list[RunInfo]:
    """The runs that are not among the newest ``keep`` of their name, oldest first; those being written are kept.

    ``name`` looks at runs of that name only. Raises ValueError for a ``keep`` below 0.
    """
    if keep < 0:
        raise ValueError(f"--keep {keep}: give 0 or more")
    by_name: dict[str, list[RunInfo]] = {}
    for info in list_runs(results_dir):
        by_name.setdefault(info.name, []).append(info)
    beyond = [
        info
        for title, infos in by_name.items()
        if name is None or title == name
        for info in infos[: max(0, len(infos) - keep)]
        if info.status != "running"
    ]
    return sorted(beyond, key=lambda info: info.run_id)


def remove_runs(runs: Sequence[RunInfo]) -> list[str]:
    """Delete runs with all their files, also where a mirror has them from; the ids of those that are gone.

    A run that a process started to write meanwhile stays. Each disappears at once: it is renamed before it is deleted.
    """
    gone = []
    for info in runs:
        run = RunFolder(path=Path(info.path), run_id=info.run_id)
        try:
            lock = take_lock(run.lock_path)
        except (ValueError, FileNotFoundError):
            continue
        with lock:
            remove_remote(run.path)
            hidden = run.path.with_name(f"{GONE}{run.run_id}")
            run.path.rename(hidden)
            for left in (hidden, *run.path.parent.glob(f"{GONE}*")):
                shutil.rmtree(left, ignore_errors=True)
        gone.append(run.run_id)
    return gone
