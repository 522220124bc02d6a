"""Part files of a run: ``<table>/part-000001.parquet``, numbered over all tables.

All rows of a cell, in every table, carry the same number, so a later attempt at a cell replaces the earlier one
whole, and a compacted part (a new number again) replaces those it was made of even when a kill comes between.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.store.files import write_atomically
from workbench.store.schema import TABLES

ROWS_PER_GROUP = 65_536
"""What a reader of a few cells holds at a time."""
_NAME = re.compile(r"part-(\d+)\.parquet")


@dataclass(frozen=True)
class TableParts:
    """Readable parts of one table by number, and the files that could not be read."""

    tables: dict[int, pa.Table] = field(default_factory=dict)
    bad: dict[int, Path] = field(default_factory=dict)


def part_path(run_path: Path, table: str, number: int) -> Path:
    return run_path / table / f"part-{number:06d}.parquet"


def part_numbers(run_path: Path, table: str) -> list[int]:
    """Numbers of the parts that lie there, ascending."""
    folder = run_path / table
    names = [_NAME.fullmatch(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for match in names if match)


def foreign_files(run_path: Path, table: str) -> list[str]:
    """Files in a table's folder that are no parts of it, relative to the run; hidden ones and those set aside are
    let be."""
    folder = run_path / table
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    known = [name for name in names if _NAME.fullmatch(name) or name.startswith(".") or name.endswith(".bad")]
    return [f"{table}/{name}" for name in names if name not in known]


def next_number(run_path: Path) -> int:
    return 1 + max((n for table in TABLES for n in part_numbers(run_path, table)), default=0)


def write_part(run_path: Path, table: str, number: int, rows: pa.Table) -> None:
    """Write one part, whole or not at all."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", row_group_size=ROWS_PER_GROUP)
    path = part_path(run_path, table, number)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, sink.getvalue())


def read_parts(
    run_path: Path,
    table: str,
    columns: list[str] | None = None,
    *,
    without: Sequence[str] = (),
    cells: Sequence[str] | None = None,
) -> TableParts:
    """All parts of a table, cut and empty files set apart; of ``cells`` alone, or all of them.

    Raises FileNotFoundError when one goes away meanwhile.
    """
    parts = TableParts()
    for number in part_numbers(run_path, table):
        path = part_path(run_path, table, number)
        try:
            data = path.read_bytes()
            with pq.ParquetFile(io.BytesIO(data)) as file:
                names = [name for name in file.schema_arrow.names if name not in without]
                wanted = names if columns is None else [name for name in columns if name in names]
                parts.tables[number] = file.read(columns=wanted) if cells is None else _of_cells(file, wanted, cells)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException):
            parts.bad[number] = path
    return parts


def _of_cells(file: pq.ParquetFile, columns: Sequence[str], cells: Sequence[str]) -> pa.Table:
    """The rows of ``cells``, one row group in memory at a time."""
    wanted = pa.array(cells, pa.string())
    groups = (file.read_row_group(group, columns=list(columns)) for group in range(file.num_row_groups))
    kept = [rows.filter(pc.is_in(rows["cell_id"], value_set=wanted)) for rows in groups]
    return pa.concat_tables(kept) if kept else file.read(columns=list(columns))


def bad_numbers(run_path: Path) -> dict[int, list[Path]]:
    """Numbers of which some table's file cannot be read, with those files."""
    found: dict[int, list[Path]] = {}
    for table in TABLES:
        for number, path in read_parts(run_path, table, columns=["cell_id"]).bad.items():
            found.setdefault(number, []).append(path)
    return found
