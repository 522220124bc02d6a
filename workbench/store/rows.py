"""Rows to typed Arrow columns: a value that is not of its column's type never costs the row."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from workbench.store.text import readable_text

_WRONG = object()


def typed_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table of ``schema``; a missing key is null. Raises ValueError for a column the schema lacks."""
    known = set(schema.names)
    extra = sorted({name for row in rows for name in row} - known)
    if extra:
        raise ValueError(f"columns {', '.join(extra)} are not in the table; it has {', '.join(schema.names)}")
    columns = [pa.array([_value(row.get(f.name), f.type) for row in rows], type=f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def typed_row(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row of ``cells`` with plain values of the columns' types; what does not fit moves as text into ``reason``."""
    values = {f.name: _convert(row.get(f.name), f.type) for f in schema}
    misfits = [name for name, value in values.items() if value is _WRONG]
    notes = [f"{name} was {row[name]!r}" for name in misfits]
    fitting = {name: None if value is _WRONG else value for name, value in values.items()}
    if notes:
        fitting["reason"] = "; ".join([fitting["reason"]] * bool(fitting.get("reason")) + notes)
    return fitting


def _value(value: Any, kind: pa.DataType) -> Any:
    converted = _convert(value, kind)
    if converted is _WRONG:
        raise ValueError(f"{value!r} is no {kind}")
    return converted


def _convert(value: Any, kind: pa.DataType) -> Any:
    """The value in the Python form of the Arrow type, None for a missing or non-finite one, else ``_WRONG``."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if pa.types.is_string(kind):
        return readable_text(str(value))
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else _WRONG
    if not isinstance(value, int | float):
        return _WRONG
    if pa.types.is_floating(kind):
        return float(value)
    return int(value) if value == int(value) else _WRONG
