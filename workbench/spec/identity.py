"""Stable ids of cells: what differs from the defaults, hashed.

A field added later with a default, another order, or another scenario or group name leaves an id as it was.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from workbench.spec.cluster import Cluster, Hardware
from workbench.spec.model import Attention, Model
from workbench.spec.scenario import SCHEMA_MAJOR, Cell
from workbench.spec.workload import DataFile, Trace

ID_LENGTH = 12
LABELS: dict[type[BaseModel], frozenset[str]] = {
    Cell: frozenset({"cell_id", "scenario", "group"}),
    Cluster: frozenset({"name"}),
    Hardware: frozenset({"sources", "note", "rated_watts"}),
    Model: frozenset({"sources", "note"}),
    Trace: frozenset({"path"}),
    DataFile: frozenset({"path"}),
}
"""Fields that say where something comes from, not what it is (files count by their digest), and those that the catalog
got after results had been written."""

LATE = frozenset({"sliding_window", "sliding_layers"})
"""Such fields of ``Attention``, which decide nothing of a cell but of scope ``model``."""


def cell_id(values: Mapping[str, Any], *, data_digest: str | None = None) -> str:
    """The id of a cell from its fields; ``data_digest`` is of the file that ``workload.data`` names."""
    said = _differing(Cell, _as_before(values)) | {"schema": SCHEMA_MAJOR}
    if data_digest is not None:
        said["data_digest"] = data_digest
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def _as_before(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """``values`` without what its scope does not read."""
    model = values.get("model")
    if model is None or model.attention is None or values["scope"].kind == "model":
        return values
    plain = {name: Attention.model_fields[name].default for name in LATE}
    return {**values, "model": model.model_copy(update={"attention": model.attention.model_copy(update=plain)})}


def _differing(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    labels = LABELS.get(cls, frozenset())
    found = {}
    for name, (has_default, default) in _defaults(cls).items():
        value = values.get(name)
        if name in labels or value is None:
            continue
        if name == "kind" or not has_default or value != default:
            found[name] = _plain(value)
    return found


@cache
def _defaults(cls: type[BaseModel]) -> dict[str, tuple[bool, Any]]:
    fields = cls.model_fields.items()
    return {name: (not field.is_required(), field.get_default(call_default_factory=True)) for name, field in fields}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _differing(type(value), value.__dict__)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
