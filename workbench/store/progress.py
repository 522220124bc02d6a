"""progress.jsonl: what a run did, one JSON object a line, appended as it happens."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.store.strict_json import to_json


def append_event(path: Path, event: Mapping[str, Any]) -> None:
    """Add one event with its ``time``; a line that a kill cut short is ended first, so it harms only itself."""
    stamped = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
    line = to_json(stamped).encode("utf-8") + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def read_events(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Events in order, and the numbers (from 1) of lines that could not be read. A missing file has no events."""
    events: list[dict[str, Any]] = []
    torn_lines: list[int] = []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode("utf-8"))
        except ValueError:
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            torn_lines.append(number)
    return events, torn_lines


def torn_lines(path: Path) -> list[int]:
    """Numbers of lines that are no whole object by their ends, for a look at many files; ``read_events`` reads them."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    told = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    return [number for number, line in told if line and not (line[:1] == b"{" and line[-1:] == b"}")]
