"""A group of a scenario file: its body, what varies in it, and every point without building them all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from workbench.spec.axes import Axis, Dimension, Entry, Report, dimensions_of, inherited, read_axes, read_entries
from workbench.spec.block import Reader
from workbench.spec.exclusion import Box, box_of, count_kept, excluded
from workbench.spec.faults import Fault
from workbench.spec.names import is_path, suggest
from workbench.spec.overrides import Override, over_body
from workbench.spec.raw import Keys, Raw, keys_of, lay, overlay
from workbench.spec.scenario import Block
from workbench.spec.yaml_source import Path

VARYING = ("matrix", "zip", "exclude", "include")
Assigned = tuple[tuple[Keys, Path], ...]


@dataclass(frozen=True)
class Part:
    """One mapping of the file, the top level or an entry of ``groups``, taken apart."""

    body: Raw
    matrix: Sequence[Axis]
    zipped: Sequence[Axis]
    exclude: Sequence[Entry]
    include: Sequence[Entry]


@dataclass(frozen=True)
class Group:
    """A block with its variations; ``at`` is its place in the file, () for the top level."""

    name: str
    at: Path
    body: Raw
    dimensions: tuple[Dimension, ...]
    exclude: tuple[Entry, ...]
    include: tuple[Entry, ...]
    overrides: tuple[Override, ...]
    boxes: tuple[Box, ...] = ()

    def count(self) -> tuple[int, bool]:
        """Number of points and whether it is exact; otherwise it is an upper bound."""
        kept, exact = count_kept([dimension.length for dimension in self.dimensions], self.boxes)
        return kept + len(self.include), exact

    def points(self) -> Iterator[tuple[Raw, Assigned]]:
        """Every point as a raw block, and where in the file each varied field of it stands."""
        for steps in product(*(range(dimension.length) for dimension in self.dimensions)):
            if not excluded(steps, self.boxes):
                yield self.point(steps)
        for entry in self.include:
            yield self.included(entry)

    def point(self, steps: Sequence[int]) -> tuple[Raw, Assigned]:
        """The point at one step of each dimension."""
        raw, assigned = self.body, []
        for dimension, step in zip(self.dimensions, steps, strict=True):
            for keys, value, where in dimension.row(step):
                raw = lay(raw, keys, value)
                assigned.append((keys, where))
        return over_body(raw, self.overrides), tuple(assigned)

    def included(self, entry: Entry) -> tuple[Raw, Assigned]:
        """The point that an ``include`` entry appends: the body with the entry laid over it."""
        raw, assigned = self.body, []
        for path, value in entry.values.items():
            raw = lay(raw, keys_of(path), value)
            assigned.append((keys_of(path), (*entry.where, path)))
        return over_body(raw, self.overrides), tuple(assigned)


def read_part(data: Raw, at: Path, report: Report) -> Part:
    """Take one mapping of the file apart; unknown keys are reported and left out."""
    own = ("name", *VARYING) if at else ("name", "groups", *VARYING)
    known = [*Block.model_fields, *own]
    body = {}
    for key, value in data.items():
        if key in Block.model_fields:
            body[key] = value
        elif key not in own:
            report.add((*at, key), value, _unknown_key(key, known))
    matrix, zipped = read_axes(data, "matrix", at, report), read_axes(data, "zip", at, report)
    return Part(
        body, matrix, zipped, read_entries(data, "exclude", at, report), read_entries(data, "include", at, report)
    )


def join(name: str, at: Path, parts: Sequence[Part], overrides: tuple[Override, ...], report: Report) -> Group:
    """The group of a part under the shared one; without ``groups`` there is one part."""
    shared, own = parts[0], parts[-1]
    alone = len(parts) == 1
    mine = [*own.matrix, *own.zipped]

    def axes(above: Sequence[Axis], kept: Sequence[Axis]) -> list[Axis]:
        others = {axis.keys for axis in mine} - {axis.keys for axis in kept}
        below = [] if alone else [axis for axis in above if axis.keys not in others]
        return inherited(below, kept, {} if alone else own.body, overrides)

    dimensions = dimensions_of(axes(shared.matrix, own.matrix), axes(shared.zipped, own.zipped), report)
    return Group(
        name=name,
        at=at,
        body=over_body(own.body if alone else overlay(shared.body, own.body), overrides),
        dimensions=dimensions,
        exclude=tuple(own.exclude if alone else (*shared.exclude, *own.exclude)),
        include=tuple(own.include if alone else (*shared.include, *own.include)),
        overrides=overrides,
    )


def survey(group: Group, reader: Reader) -> tuple[list[Box], list[tuple[Fault, Assigned]]]:
    """Read every value of every axis once, beside the first values of the others, and every included point.

    Returns the boxes that ``exclude`` drops and every fault found.
    """
    first = [0] * len(group.dimensions)
    faults: list[tuple[Fault, Assigned]] = []
    seen: set[tuple[Path, str]] = set()

    def read(point: tuple[Raw, Assigned]) -> Any:
        block, found = reader.read(point[0])
        for fault in found:
            if (fault.path, repr(fault.value) + fault.message) not in seen:
                seen.add((fault.path, repr(fault.value) + fault.message))
                faults.append((fault, point[1]))
        return block

    start = read(group.point(first))
    reads = [
        [start, *(read(group.point([*first[:d], step, *first[d + 1 :]])) for step in range(1, dimension.length))]
        for d, dimension in enumerate(group.dimensions)
    ]
    for entry in group.include:
        read(group.included(entry))
    boxes = [box_of(entry.values, group.dimensions, reads or [[start]]) for entry in group.exclude]
    return [box for box in boxes if box is not None], faults


def _unknown_key(key: str, known: Sequence[str]) -> str:
    if "." in key and is_path(key):
        return "a dotted path stands in matrix, zip, exclude or include; write nested mappings here"
    close = suggest(key, list(known))
    return f"unknown key; did you mean {close}?" if close else f"unknown key; known here: {', '.join(sorted(known))}"
