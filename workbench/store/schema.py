"""Arrow schemas of the tables, taken from the Record and TABLE_COLUMNS of the spec."""

from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

import pyarrow as pa

from workbench.spec.record import COLUMNS, TABLE_COLUMNS, Record

TABLES: tuple[str, ...] = ("cells", *TABLE_COLUMNS)
_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Columns and types of a table. Raises ValueError for an unknown name."""
    if table == "cells":
        hints = get_type_hints(Record)
        return pa.schema([(name, _ARROW[_plain_type(hints[name])]) for name in COLUMNS])
    if table not in TABLE_COLUMNS:
        raise ValueError(f"no table {table!r}; there are {', '.join(TABLES)}")
    return pa.schema([(name, _ARROW[kind]) for name, kind in TABLE_COLUMNS[table].items()])


def _plain_type(hint: Any) -> type:
    """``float | None`` is float; a Literal of texts is str."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    return kinds[0] if isinstance(kinds[0], type) else str
