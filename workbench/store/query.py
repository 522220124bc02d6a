"""Asking all cells of a results folder at once: columns, filters, order and counts; only what is asked for is read.

DuckDB reads the catalog's Parquet where it is installed, Arrow where it is not, with the same answers. Texts that come
from outside are bound as values, and names of columns are checked against those there are.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.store.catalog import LEFT_OUT, Catalog
from workbench.store.evolution import unified_table
from workbench.store.reader import to_frame
from workbench.store.schema import arrow_schema

MEMORY, THREADS = "512MB", 2


@dataclass(frozen=True)
class Between:
    """Numbers from ``low`` to ``high``, both included; None leaves an end open."""

    low: float | None = None
    high: float | None = None


Where = Mapping[str, Sequence[Any] | Between]
"""By column the values to keep (None among them: also rows without one), or the numbers to keep."""


def select_cells(
    catalog: Catalog,
    *,
    columns: Sequence[str],
    where: Where | None = None,
    order_by: str | None = None,
    descending: bool = False,
    limit: int | None = None,
    offset: int = 0,
) -> pd.DataFrame:
    """The cells that ``where`` keeps, typed as ``read_table`` types them; without ``order_by`` by run and cell.

    Raises ValueError for a column that no run has, and for a value that its column cannot hold.
    """
    where = _checked(catalog, where or {}, [*columns, *([order_by] if order_by else [])])
    order = [*([order_by] if order_by else []), "run_id", "cell_id"]
    if _duckdb():
        direction = " DESC" if descending else ""
        sql = f"ORDER BY {_quoted(order[0])}{direction if order_by else ''} NULLS LAST"
        sql += "".join(f", {_quoted(name)}" for name in order[1:])
        sql += f" LIMIT {int(limit)}" if limit is not None else ""
        sql += f" OFFSET {int(offset)}" if offset else ""
        return to_frame(_ask(catalog, ", ".join(map(_quoted, columns)), where, sql))
    rows = _filtered(catalog, [*columns, *order], where)
    keys = [(name, "descending" if descending and name == order_by else "ascending") for name in order]
    rows = rows.take(pc.sort_indices(rows, sort_keys=list(dict(keys).items())))
    return to_frame(rows.slice(offset, limit).select(list(columns)))


def count_cells(catalog: Catalog, *, where: Where | None = None) -> int:
    """How many cells ``where`` keeps."""
    where = _checked(catalog, where or {}, [])
    if _duckdb():
        return int(_ask(catalog, "count(*) AS number", where, "")["number"][0].as_py())
    return len(_filtered(catalog, ["run_id"], where))


def count_values(catalog: Catalog, *, columns: Sequence[str], where: Where | None = None) -> dict[str, dict[Any, int]]:
    """By column, the values that occur among the cells that ``where`` keeps, most frequent first, and how often."""
    where = _checked(catalog, where or {}, columns)
    found: dict[str, dict[Any, int]] = {}
    for name in columns:
        if _duckdb():
            by = f"GROUP BY 1 ORDER BY number DESC, {_quoted(name)} NULLS LAST"
            counts = _ask(catalog, f"{_quoted(name)}, count(*) AS number", where, by)
            found[name] = dict(zip(counts[name].to_pylist(), counts["number"].to_pylist(), strict=True))
        else:
            counts = _filtered(catalog, [name], where).group_by(name).aggregate([([], "count_all")])
            pairs = zip(counts[name].to_pylist(), counts["count_all"].to_pylist(), strict=True)
            found[name] = dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0] is None, pair[0])))
    return found


def matching_runs(catalog: Catalog, *, where: Where) -> list[str]:
    """Runs with at least one cell that ``where`` keeps, oldest first."""
    return sorted(count_values(catalog, columns=["run_id"], where=where)["run_id"])


def known_columns(catalog: Catalog) -> dict[str, pa.DataType]:
    """Every column that a run has, also those of other versions, with its type."""
    kinds = {field.name: field.type for field in arrow_schema("cells") if field.name not in LEFT_OUT}
    schemas = [catalog.table.schema] if catalog.table is not None else [pq.read_schema(p) for p in catalog.runs_of]
    for schema in schemas:
        kinds |= {field.name: field.type for field in schema if field.name not in kinds}
    return kinds


def _duckdb() -> bool:
    return find_spec("duckdb") is not None


def _checked(catalog: Catalog, where: Where, names: Sequence[str]) -> dict[str, Sequence[Any] | Between]:
    """The filters with values of their columns' types."""
    kinds = known_columns(catalog)
    for name in (*names, *where):
        if name not in kinds:
            nearest = difflib.get_close_matches(name, kinds, n=3) or sorted(kinds)[:3]
            raise ValueError(f"no run has a column {name!r}; nearest: {', '.join(nearest)}")
    return {
        name: wanted if isinstance(wanted, Between) else [_typed(name, value, kinds[name]) for value in wanted]
        for name, wanted in where.items()
    }


def _typed(name: str, value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    try:
        if pa.types.is_boolean(kind) and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        if pa.types.is_string(kind):
            return str(value)
        return pa.scalar(float(value)).cast(kind).as_py()
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise ValueError(f"{name}: {value!r} is no {kind}") from error


def _ask(catalog: Catalog, what: str, where: Mapping[str, Sequence[Any] | Between], rest: str) -> pa.Table:
    import duckdb

    with duckdb.connect(":memory:", config={"threads": THREADS, "memory_limit": MEMORY}) as connection:
        if catalog.table is not None:
            connection.register("cells", catalog.table)
        else:
            live = [(run, str(path)) for path, runs in catalog.runs_of.items() for run in runs]
            connection.register("live", pa.table({"run_id": [r for r, _ in live], "filename": [f for _, f in live]}))
            files = connection.read_parquet([str(path) for path in catalog.runs_of], union_by_name=True, filename=True)
            files.create_view("files")
            connection.execute("CREATE VIEW cells AS SELECT * FROM files SEMI JOIN live USING (run_id, filename)")
        terms, values = _terms(where)
        condition = f"WHERE {' AND '.join(terms)}" if terms else ""
        return connection.sql(f"SELECT {what} FROM cells {condition} {rest}", params=values).to_arrow_table()


def _terms(where: Mapping[str, Sequence[Any] | Between]) -> tuple[list[str], list[Any]]:
    terms, values = [], []
    for name, wanted in where.items():
        column = _quoted(name)
        if isinstance(wanted, Between):
            for sign, end in ((">=", wanted.low), ("<=", wanted.high)):
                if end is not None:
                    terms.append(f"{column} {sign} ?")
                    values.append(end)
            continue
        present = [value for value in wanted if value is not None]
        parts = [f"{column} IN ({', '.join('?' * len(present))})"] if present else []
        parts += [f"{column} IS NULL"] if len(present) < len(wanted) else []
        terms.append(f"({' OR '.join(parts) or 'FALSE'})")
        values += present
    return terms, values


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _filtered(catalog: Catalog, names: Sequence[str], where: Mapping[str, Sequence[Any] | Between]) -> pa.Table:
    """The columns of the kept cells, by Arrow alone."""
    needed = list(dict.fromkeys([*names, *where, "run_id"]))
    if catalog.table is not None:
        tables = [catalog.table]
    else:
        tables = [
            pq.read_table(
                path,
                columns=[name for name in needed if name in pq.read_schema(path).names],
                filters=[("run_id", "in", list(runs))],
            )
            for path, runs in catalog.runs_of.items()
        ]
    rows = unified_table(tables, pa.schema([(name, known_columns(catalog)[name]) for name in needed])).select(needed)
    for name, wanted in where.items():
        rows = rows.filter(_mask(rows[name], wanted))
    return rows


def _mask(column: pa.ChunkedArray, wanted: Sequence[Any] | Between) -> Any:
    if isinstance(wanted, Between):
        low = pc.greater_equal(column, wanted.low) if wanted.low is not None else pc.is_valid(column)
        high = pc.less_equal(column, wanted.high) if wanted.high is not None else pc.is_valid(column)
        return pc.and_(low, high)
    return pc.is_in(column, value_set=pa.array(wanted, column.type))
