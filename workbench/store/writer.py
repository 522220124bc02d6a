"""Writing a run's rows: small parts while it goes, one part a table when it ends."""

import threading
import time
from dataclasses import asdict, replace
from typing import Any, Self

import pyarrow as pa

from workbench.spec.record import Outcome
from workbench.store.bucket import fetch_table
from workbench.store.files import take_lock
from workbench.store.parts import bad_numbers, next_number, part_numbers, part_path, read_parts, write_part
from workbench.store.reader import chosen_numbers, chosen_rows
from workbench.store.rows import typed_row, typed_table
from workbench.store.run_folder import RunFolder
from workbench.store.schema import TABLES, arrow_schema

MAX_CELLS_PER_PART = 256
SECONDS_PER_PART = 1.0


class Writer:
    """Takes outcomes and keeps them: a part at most once a second or per 256 cells, so a kill costs a second's cells.

    One process writes a run at a time; a second Writer raises ValueError. Use it as a context manager or close it.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        for table in TABLES:
            fetch_table(run.path, table)
        self._lock_file = take_lock(run.lock_path)
        self._lock = threading.RLock()
        self._pending: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self._number = next_number(run.path)
        self._written_at = float("-inf")
        self._timer: threading.Timer | None = None
        self._failure: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def finished_ids(self) -> frozenset[str]:
        """Cells that a resumed run may skip: not ``error``, and readable in every table."""
        with self._lock:
            self.flush()
            lost = bad_numbers(self._run.path)
            cells = read_parts(self._run.path, "cells", columns=["cell_id", "status"]).tables
        chosen = chosen_numbers(cells)
        done = {
            (cell_id, number)
            for number, part in cells.items()
            for cell_id, status in zip(part["cell_id"].to_pylist(), part["status"].to_pylist(), strict=True)
            if status != "error"
        }
        return frozenset(cell for cell, number in chosen.items() if number not in lost and (cell, number) in done)

    def add(self, outcome: Outcome) -> None:
        """Keep one finished cell. Raises ValueError for an unknown table or column, OSError when the disk fails."""
        record = replace(outcome.record, run_id=outcome.record.run_id or self._run.run_id)
        rows: dict[str, list[dict[str, Any]]] = {"cells": [typed_row(asdict(record), arrow_schema("cells"))]}
        for table, table_rows in outcome.tables.items():
            rows[table] = [{"cell_id": record.cell_id, **row} for row in table_rows]
            typed_table(rows[table], arrow_schema(table))
        with self._lock:
            self._raise_failure()
            self._pending.pop(record.cell_id, None)
            self._pending[record.cell_id] = rows
            wait = self._written_at + SECONDS_PER_PART - time.monotonic()
            if len(self._pending) >= MAX_CELLS_PER_PART or wait <= 0:
                self.flush()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._flush_later)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write what is pending now. The ``cells`` file comes last: a cell without its other rows never shows."""
        with self._lock:
            self._raise_failure()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._pending:
                return
            for table in reversed(TABLES):
                rows = [row for cell in self._pending.values() for row in cell.get(table, [])]
                if rows:
                    write_part(self._run.path, table, self._number, typed_table(rows, arrow_schema(table)))
            self._number += 1
            self._pending.clear()
            self._written_at = time.monotonic()

    def close(self) -> None:
        """Write what is pending, compact the parts and let the run go."""
        with self._lock:
            if self._lock_file.closed:
                return
            try:
                self.flush()
                self._compact()
            finally:
                self._lock_file.close()

    def _flush_later(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self.flush()
            except OSError as error:
                self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _compact(self) -> None:
        """One part a table. Parts beside an unreadable file stay as they are, so that a resume knows what to redo."""
        path = self._run.path
        lost = bad_numbers(path)
        chosen = chosen_numbers(read_parts(path, "cells", columns=["cell_id", "status"]).tables)
        merged = {table: [n for n in part_numbers(path, table) if n not in lost] for table in TABLES}
        if max(len(numbers) for numbers in merged.values()) > 1:
            for table in reversed(TABLES):
                parts = read_parts(path, table)
                rows = chosen_rows(table, parts, chosen)
                self._write_merged(table, rows, chosen, lost)
            self._number += 1
            for table, numbers in merged.items():
                for number in numbers:
                    part_path(path, table, number).unlink(missing_ok=True)
        self._set_aside(lost, set(chosen.values()))

    def _write_merged(self, table: str, rows: pa.Table, chosen: dict[str, int], lost: dict[int, Any]) -> None:
        keep = [chosen.get(cell_id) not in lost for cell_id in rows["cell_id"].to_pylist()]
        kept = rows.filter(pa.array(keep, pa.bool_()))
        if len(kept):
            write_part(self._run.path, table, self._number, kept)

    def _set_aside(self, lost: dict[int, Any], in_use: set[int]) -> None:
        """Rename unreadable files whose cells have all been redone, so that they are named no longer."""
        for number, paths in lost.items():
            if number not in in_use:
                for bad in paths:
                    bad.rename(bad.with_name(bad.name + ".bad"))
