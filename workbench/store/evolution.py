"""Schema evolution: tables written by other versions become one, with the types of today and nothing thrown away."""

from collections.abc import Sequence

import pyarrow as pa


def unified_table(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Join tables: columns of ``schema`` first with its types, then those only older or newer versions know.

    A value that does not fit its column's type moves as text into ``<column>_text``.
    """
    if not tables:
        return schema.empty_table()
    fitted = [fit_table(table, schema) for table in tables]
    if all(table.schema.equals(fitted[0].schema) for table in fitted):
        return pa.concat_tables(fitted)
    extras = _extra_fields(fitted, schema)
    return pa.concat_tables([_with_extras(table, schema, extras) for table in fitted])


def fit_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """One table with every column of ``schema`` in its type; columns it does not know stay as they are, behind."""
    if table.schema.equals(schema):
        return table
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    texts: dict[str, pa.Array] = {}
    present = dict(zip(table.column_names, table.columns, strict=True))
    for wanted in schema:
        if wanted.name not in present:
            columns[wanted.name] = pa.nulls(len(table), wanted.type)
            continue
        column = present[wanted.name]
        try:
            columns[wanted.name] = column if column.type == wanted.type else column.cast(wanted.type)
        except pa.ArrowException:
            columns[wanted.name], texts[f"{wanted.name}_text"] = _split(column, wanted.type)
    others = {name: column for name, column in present.items() if name not in columns}
    return pa.table(columns | others | texts)


def _split(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Values that fit the type, and the others as text."""
    fitting, texts = [], []
    for value in column.to_pylist():
        try:
            fitting.append(pa.scalar(value).cast(kind).as_py() if value is not None else None)
            texts.append(None)
        except pa.ArrowException:
            fitting.append(None)
            texts.append(str(value))
    return pa.array(fitting, kind), pa.array(texts, pa.string())


def _extra_fields(tables: Sequence[pa.Table], schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns beyond the schema; where versions disagree on a type, text holds both."""
    extras: dict[str, pa.DataType] = {}
    for table in tables:
        for name in table.column_names:
            if name in schema.names:
                continue
            kind = table.schema.field(name).type
            agreed = extras.get(name, kind) in (kind, pa.null()) or pa.types.is_null(kind)
            known = extras.get(name, kind)
            extras[name] = (known if pa.types.is_null(kind) else kind) if agreed else pa.string()
    return extras


def _with_extras(table: pa.Table, schema: pa.Schema, extras: dict[str, pa.DataType]) -> pa.Table:
    columns = {name: table[name] for name in schema.names}
    for name, kind in extras.items():
        columns[name] = table[name].cast(kind) if name in table.column_names else pa.nulls(len(table), kind)
    return pa.table(columns)
