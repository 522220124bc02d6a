"""What varies in a group: matrix axes, lists zipped together, and entries that are dropped or appended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.spec.errors import MISSING
from workbench.spec.names import block_paths, is_path, suggest
from workbench.spec.overrides import Override, pins
from workbench.spec.raw import Keys, Raw, begins, holds, keys_of
from workbench.spec.yaml_source import Path

DOTTED = ("matrix", "zip", "exclude", "include")


@dataclass(frozen=True)
class Axis:
    """A list of values for one dotted path; ``where`` is its place in the file."""

    keys: Keys
    values: tuple[Any, ...]
    where: Path


@dataclass(frozen=True)
class Dimension:
    """Axes that step together: one for a matrix entry, all of them for ``zip``."""

    axes: tuple[Axis, ...]
    length: int

    def row(self, index: int) -> list[tuple[Keys, Any, Path]]:
        """Keys, value and place of every axis at a step; an axis of one value repeats it."""
        steps = [(axis, min(index, len(axis.values) - 1)) for axis in self.axes]
        return [(axis.keys, axis.values[step], (*axis.where, step)) for axis, step in steps]


@dataclass(frozen=True)
class Entry:
    """One mapping of ``exclude`` or ``include``."""

    values: Raw
    where: Path


class Report:
    """Collects faults by their place in the file."""

    def __init__(self) -> None:
        self.found: list[tuple[Path, Any, str]] = []

    def add(self, where: Path, value: Any, message: str) -> None:
        self.found.append((where, value, message))


def read_axes(data: Raw, kind: str, at: Path, report: Report) -> list[Axis]:
    """The axes under ``matrix`` or ``zip`` of one mapping of the file."""
    written = data.get(kind, {})
    if not isinstance(written, Mapping):
        report.add((*at, kind), written, "must be a mapping of dotted paths to lists")
        return []
    axes = []
    for path, values in written.items():
        where = (*at, kind, path)
        if not isinstance(values, list) or not values:
            report.add(where, values, "must be a list with at least one value")
        elif check_path(path, where, report):
            _refuse_repeats(values, where, report)
            axes.append(Axis(keys_of(path), tuple(values), where))
    return axes


def read_entries(data: Raw, kind: str, at: Path, report: Report) -> list[Entry]:
    """The entries under ``exclude`` or ``include`` of one mapping of the file."""
    written = data.get(kind, [])
    if not isinstance(written, list):
        report.add((*at, kind), written, "must be a list of mappings")
        return []
    entries = []
    for number, values in enumerate(written):
        where = (*at, kind, number)
        if not isinstance(values, Mapping) or not values:
            report.add(where, values, "must be a mapping of dotted paths to values")
            continue
        unknown = [path for path in values if not check_path(path, (*where, path), report)]
        if not unknown:
            entries.append(Entry(values, where))
    return entries


def check_path(path: str, where: Path, report: Report) -> bool:
    """Whether a dotted path leads to a field; reports it with the nearest right one if not."""
    if is_path(path):
        return True
    close = suggest(path, sorted(block_paths()))
    report.add(where, MISSING, f"unknown path{f'; did you mean {close}?' if close else ''}")
    return False


def dimensions_of(matrix: Sequence[Axis], zipped: Sequence[Axis], report: Report) -> tuple[Dimension, ...]:
    """Matrix axes one by one, then the zipped ones as one dimension.

    Reports zipped lists of unequal length (a list of one value repeats) and axes that set the same field.
    """
    axes = [*matrix, *zipped]
    for number, axis in enumerate(axes):
        for other in axes[:number]:
            if begins(axis.keys, other.keys) or begins(other.keys, axis.keys):
                report.add(axis.where, MISSING, f"sets the same field as the axis {'.'.join(other.keys)}; keep one")
    dimensions = [Dimension((axis,), len(axis.values)) for axis in matrix]
    lengths = {len(axis.values) for axis in zipped} - {1}
    if len(lengths) > 1:
        said = ", ".join(f"{'.'.join(axis.keys)} has {len(axis.values)}" for axis in zipped)
        report.add(zipped[0].where[:-1], MISSING, f"lists must be equally long, or hold one value: {said}")
    elif zipped:
        dimensions.append(Dimension(tuple(zipped), max(len(axis.values) for axis in zipped)))
    return tuple(dimensions)


def inherited(shared: Sequence[Axis], own: Sequence[Axis], body: Raw, overrides: Sequence[Override]) -> list[Axis]:
    """Axes of a group: its ``own``, and the shared ones whose field its ``body`` does not set itself.

    An axis whose field an override decides has nothing left to vary and goes.
    """
    mine = {axis.keys for axis in own}
    kept = [axis for axis in shared if axis.keys not in mine and not holds(body, axis.keys)]
    return [axis for axis in (*kept, *own) if not pins(overrides, axis.keys)]


def _refuse_repeats(values: Sequence[Any], where: Path, report: Report) -> None:
    seen: set[str] = set()
    for step, value in enumerate(values):
        text = json.dumps(value, sort_keys=True, default=str)
        if text in seen and where[-2] == "matrix":
            report.add((*where, step), value, "stands twice in this list")
        seen.add(text)
