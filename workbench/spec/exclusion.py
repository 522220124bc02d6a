"""Which combinations ``exclude`` drops, counted without building them.

A rule becomes a box: for each dimension it looks at, the steps at which it matches. A combination is dropped when it
lies in any box.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from pydantic import BaseModel

from workbench.spec.axes import Dimension
from workbench.spec.base import parse_size
from workbench.spec.block import ReadBlock
from workbench.spec.catalog import whole_cluster_ref
from workbench.spec.raw import Keys, Raw, begins, leaves

Box = Mapping[int, frozenset[int]]
_MOST_ENUMERATED = 50_000
_MOST_BOXES = 12


def box_of(rule: Raw, dimensions: Sequence[Dimension], reads: Sequence[Sequence[ReadBlock]]) -> Box | None:
    """The box of one rule, or None when it can match nothing.

    ``reads[d][i]`` is a block of the group at step i of dimension d. A part of the rule that no dimension varies is
    judged once, on any block.
    """
    box: dict[int, frozenset[int]] = {}
    for keys, wanted in leaves(rule).items():
        varying = [d for d, dimension in enumerate(dimensions) if _varies(dimension, keys)]
        if not varying:
            if not _matches(reads[0][0] if reads else None, keys, wanted):
                return None
            continue
        d = varying[0]
        steps = frozenset(i for i, read in enumerate(reads[d]) if _matches(read, keys, wanted))
        box[d] = box.get(d, steps) & steps
        if not box[d]:
            return None
    return box


def excluded(steps: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether a combination, given by its step in each dimension, lies in any box."""
    return any(all(steps[d] in allowed for d, allowed in box.items()) for box in boxes)


def count_kept(lengths: Sequence[int], boxes: Sequence[Box]) -> tuple[int, bool]:
    """Combinations that no box drops, and whether that is exact; if not, it is the number before dropping."""
    total = prod(lengths)
    if not boxes:
        return total, True
    if total <= _MOST_ENUMERATED:
        return sum(not excluded(steps, boxes) for steps in product(*map(range, lengths))), True
    if len(boxes) > _MOST_BOXES:
        return total, False
    return total - _union(lengths, boxes, {}), True


def _union(lengths: Sequence[int], boxes: Sequence[Box], common: Box) -> int:
    """Combinations of ``common`` that lie in any of ``boxes``, by inclusion and exclusion."""
    covered = 0
    for number, box in enumerate(boxes):
        both = dict(common)
        for d, steps in box.items():
            both[d] = both.get(d, steps) & steps
        volume = prod(len(both[d]) if d in both else length for d, length in enumerate(lengths))
        if volume:
            covered += volume - _union(lengths, boxes[:number], both)
    return covered


def _varies(dimension: Dimension, keys: Keys) -> bool:
    return any(
        begins(keys, axis.keys) or begins(axis.keys, keys) or _decides(axis.keys, keys) for axis in dimension.axes
    )


def _decides(axis: Keys, keys: Keys) -> bool:
    """Whether an axis over ``router.kind`` or alike changes what stands at ``router.num_groups``."""
    return len(axis) > 1 and axis[-1] in ("kind", "name", "base", "config") and begins(keys, axis[:-1])


def _matches(read: ReadBlock | None, keys: Keys, wanted: Any) -> bool:
    return read is not None and _equal(_value(read, keys), wanted)


def _value(read: ReadBlock, keys: Keys) -> Any:
    """What stands at ``keys`` once defaults and catalog names are filled in."""
    head, rest = keys[0], keys[1:]
    if head in ("model", "cluster") and (not rest or rest[0] in ("base", "config")):
        written = read.raw.get(head)
        return written.get(rest[0]) if rest and isinstance(written, Mapping) else written
    value: Any = read.block
    if head == "model":
        value, keys = read.model, rest
    elif head == "cluster":
        value, keys = whole_cluster_ref(read.block.cluster), rest
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, BaseModel):
        return wanted is not None and wanted in (getattr(value, "kind", None), getattr(value, "name", None))
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, tuple):
        return list(value) == wanted
    if isinstance(value, int) and isinstance(wanted, str):
        try:
            return parse_size(wanted) == value
        except ValueError:
            return False
    return value == wanted
