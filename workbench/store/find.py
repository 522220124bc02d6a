"""Finding runs among many."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from workbench.store.catalog import open_catalog
from workbench.store.query import Where, matching_runs
from workbench.store.run_folder import RunInfo, list_runs


def find_runs(
    results_dir: Path | str,
    *,
    name: str | None = None,
    status: str | None = None,
    since: str | None = None,
    where: Sequence[str] = (),
    limit: int | None = None,
) -> list[RunInfo]:
    """Runs that all of these hold for, oldest first, of too many the newest ``limit``.

    ``name`` is a part of the run's name, ``since`` a date or time (UTC), and ``where`` has ``column=value,value``
    that one cell of the run fulfils all at once. Raises ValueError for what none of these can be.
    """
    start = _time(since) if since is not None else None
    infos = [
        info
        for info in list_runs(results_dir)
        if (name is None or name.lower() in info.name.lower())
        and (status is None or info.status == status)
        and (start is None or _made(info) >= start)
    ]
    if where:
        found = set(matching_runs(open_catalog(results_dir), where=parse_where(where)))
        infos = [info for info in infos if info.run_id in found]
    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit}: give 1 or more")
    return infos[-limit:] if limit else infos


def parse_where(texts: Sequence[str]) -> Where:
    """``column=value`` or ``column=value,value`` as filters; ``none`` means rows without a value."""
    found: dict[str, list[str | None]] = {}
    for text in texts:
        column, sign, values = text.partition("=")
        if not sign or not column.strip():
            raise ValueError(f"--where {text}: write COLUMN=VALUE, such as precision=fp8_block")
        parts = [part.strip() for part in values.split(",")]
        found.setdefault(column.strip(), []).extend(None if part == "none" else part for part in parts)
    return found


def _made(info: RunInfo) -> datetime:
    """When a run was made: by its manifest, else by its name, else long ago."""
    for text in (info.created_at, info.run_id.partition("-")[0]):
        try:
            made = datetime.fromisoformat(str(text))
        except ValueError:
            continue
        return made if made.tzinfo else made.replace(tzinfo=UTC)
    return datetime.min.replace(tzinfo=UTC)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"--since {text}: write a date such as 2026-11-30, or 2026-11-30T08:00") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
