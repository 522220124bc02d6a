"""Reading a run's tables: parts of different schemas become one typed frame, and no row is lost on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
import pyarrow as pa

from workbench.store.bucket import fetch_table
from workbench.store.evolution import unified_table
from workbench.store.parts import TableParts, bad_numbers, part_path, read_parts
from workbench.store.run_folder import RunFolder
from workbench.store.schema import TABLES, arrow_schema

_ATTEMPTS = 5
_PART = "_part"


@dataclass(frozen=True)
class ReadResult:
    """Rows typed by the schema (missing numbers are NA), and the files passed over, relative to the run's folder."""

    frame: pd.DataFrame
    bad_files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ArrowResult:
    """Rows as Arrow holds them, and the files passed over."""

    table: pa.Table
    bad_files: list[str] = field(default_factory=list)


def read_table(run: RunFolder, table: str, *, cells: Sequence[str] | None = None) -> ReadResult:
    """The rows of ``cells``, ``stages``, ``links``, ``loads``, ``memory`` or ``samples``: all, or those of ``cells``.

    Of several attempts at a cell the last counts, but an ``error`` never displaces a better one; the other tables
    follow the attempt that counts. A run may be written meanwhile. Raises ValueError for an unknown table.
    """
    whole = read_arrow(run, table, cells=cells)
    return ReadResult(frame=to_frame(whole.table), bad_files=whole.bad_files)


def read_arrow(
    run: RunFolder, table: str, *, without: Sequence[str] = (), cells: Sequence[str] | None = None
) -> ArrowResult:
    """As ``read_table``, for what goes on with columns rather than with rows; the columns ``without`` stay unread."""
    arrow_schema(table)
    fetch_table(run.path, table)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _read_once(run, table, without, cells)
        except FileNotFoundError:  # compacted under our eyes
            continue
    return _read_once(run, table, without, cells)


def read_tables(run: RunFolder) -> dict[str, ReadResult]:
    """Every table of a run by name."""
    return {table: read_table(run, table) for table in TABLES}


def unreadable_files(run: RunFolder) -> list[str]:
    """All part files of the run that are cut or empty, relative to its folder."""
    return sorted(str(path.relative_to(run.path)) for paths in bad_numbers(run.path).values() for path in paths)


def chosen_numbers(cells: Mapping[int, pa.Table]) -> dict[str, int]:
    """The part that counts for each cell id."""
    chosen: dict[str, tuple[bool, int]] = {}
    for number in sorted(cells):
        part = cells[number]
        for cell_id, status in zip(part["cell_id"].to_pylist(), part["status"].to_pylist(), strict=True):
            candidate = (status != "error", number)
            chosen[cell_id] = max(chosen.get(cell_id, candidate), candidate)
    return {cell_id: number for cell_id, (_, number) in chosen.items()}


def chosen_rows(table: str, parts: TableParts, chosen: Mapping[str, int]) -> pa.Table:
    """The parts joined, with only those rows of each cell that its counting attempt wrote."""
    if _is_plain(table, parts, chosen):
        return unified_table(list(parts.tables.values()), arrow_schema(table))
    marked = {n: part.append_column(_PART, pa.array([n] * len(part), pa.int64())) for n, part in parts.tables.items()}
    whole = unified_table([marked[n] for n in sorted(marked)], arrow_schema(table))
    if not len(whole):
        return whole.drop_columns([_PART]) if _PART in whole.column_names else whole
    where = pd.DataFrame({"cell": whole["cell_id"].to_pylist(), "part": whole[_PART].to_numpy()})
    latest = where.groupby("cell", dropna=False)["part"].transform("max")
    keep = where["part"] == where["cell"].map(chosen).fillna(latest)
    if table == "cells":
        keep &= ~where.where(keep).duplicated("cell", keep="last") | where["cell"].isna()
    return whole.drop_columns([_PART]).filter(pa.array(keep.to_numpy(dtype=bool)))


def _is_plain(table: str, parts: TableParts, chosen: Mapping[str, int]) -> bool:
    """Whether every row counts: a compacted run, the usual case, has one part a table and each cell once."""
    numbers = {*parts.tables, *chosen.values()}
    if len(parts.tables) != 1 or len(numbers) != 1 or parts.bad:
        return False
    (part,) = parts.tables.values()
    return table != "cells" or len(part) == len(chosen)


def _read_once(run: RunFolder, table: str, without: Sequence[str], wanted: Sequence[str] | None) -> ArrowResult:
    heads = None if table == "cells" else ["cell_id", "status"]
    cells = read_parts(run.path, "cells", columns=heads, without=without, cells=wanted)
    parts = cells if table == "cells" else read_parts(run.path, table, without=without, cells=wanted)
    whole = chosen_rows(table, parts, chosen_numbers(cells.tables))
    whole = whole.drop_columns([name for name in without if name in whole.column_names])
    bad = [str(part_path(run.path, table, number).relative_to(run.path)) for number in sorted(parts.bad)]
    return ArrowResult(table=whole, bad_files=bad)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Arrow to pandas with whole numbers and booleans that can be missing."""
    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=kinds.get)
