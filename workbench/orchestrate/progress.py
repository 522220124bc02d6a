"""What a run tells while it goes: progress.jsonl for programs, a bar or plain lines for people."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from workbench.plan import cell_label
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import Cell
from workbench.store.progress import append_event

SIMULATED_GUESS_S = 0.05
MEASURED_OVERHEAD_GUESS_S = 1.5
TRUST_AFTER = {"simulated": 32, "ranks": 1}
LINE_EVERY_S = 2.0
MAX_FAULT_LINES = 20


class Pace:
    """Time left, from how long each kind of cell took so far; before the first, from its measuring budget."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._left = Counter(_kind(cell) for cell in cells)
        budgets = [cell.measure.max_seconds for cell in cells if _kind(cell) == "ranks"]
        measured = sum(budgets) / len(budgets) + MEASURED_OVERHEAD_GUESS_S if budgets else 0.0
        self._guess = {"ranks": measured, "simulated": SIMULATED_GUESS_S}
        self._spent: Counter[str] = Counter()
        self._done: Counter[str] = Counter()

    def finished(self, cell: Cell, seconds: float) -> None:
        kind = _kind(cell)
        self._left[kind] -= 1
        self._done[kind] += 1
        self._spent[kind] += seconds

    def seconds_left(self) -> float:
        return sum(self._left[kind] * self._mean(kind) for kind in self._left)

    def _mean(self, kind: str) -> float:
        """Simulated cells come in bursts of a batch, so the first of a burst says nothing yet."""
        done = self._done[kind]
        return self._spent[kind] / done if done >= TRUST_AFTER[kind] else self._guess[kind]


def _kind(cell: Cell) -> str:
    return "simulated" if cell.engine == "simulate" else "ranks"


class RunProgress:
    """Counts cells, writes events, and shows them on ``console`` (None: silent). Use it as a context manager."""

    def __init__(
        self,
        path: Path,
        *,
        run_id: str,
        cells: Sequence[Cell],
        num_done: int,
        console: Console | None,
        on_event: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        self._path = path
        self._run_id = run_id
        self._pace = Pace(cells)
        self._done = num_done
        self._total = num_done + len(cells)
        self._counts: Counter[str] = Counter()
        self._console = console
        self._on_event = on_event
        self._last = self._last_line = time.monotonic()
        self._fault_lines = 0
        self._bar, self._task = _bar(console, self._total, num_done)

    def __enter__(self) -> Self:
        self._emit({"event": "run_start", "run_id": self._run_id, "total": self._total, "pid": os.getpid()})
        if self._console is not None:
            done = f", {self._done} of them done" if self._done else ""
            cells = f"{self._total} cell{'s' if self._total != 1 else ''}"
            self._console.print(f"run {self._run_id}: {cells}{done}", markup=False, soft_wrap=True)
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def cell(self, cell: Cell, outcome: Outcome) -> None:
        """One cell is finished and kept."""
        now = time.monotonic()
        self._pace.finished(cell, now - self._last)
        self._last = now
        self._done += 1
        record = outcome.record
        self._counts[record.status] += 1
        label = cell_label(cell)
        eta_s = round(self._pace.seconds_left(), 1)
        self._emit(
            {
                "event": "cell",
                "cell_id": cell.cell_id,
                "label": label,
                "status": record.status,
                "reason": record.reason,
                "latency_us": record.latency_us,
                "engine": record.engine,
                "done": self._done,
                "total": self._total,
                "eta_s": eta_s,
            }
        )
        self._show(label, record, eta_s)

    def note(self, text: str) -> None:
        """Something a reader of the run wants to know that is no cell; the time up to it is not the next cell's."""
        self._emit({"event": "note", "text": text})
        self._last = time.monotonic()
        if self._console is not None:
            self._console.print(f"  {text.splitlines()[0]}", markup=False, soft_wrap=True)

    def end(self, status: str) -> None:
        """The run is over: ``finished``, ``stopped`` or ``failed``."""
        counts = {name: self._counts[name] for name in ("ok", "unsupported", "infeasible", "error")}
        self._emit({"event": "run_end", "status": status, **counts})

    def _emit(self, event: Mapping[str, Any]) -> None:
        append_event(self._path, event)
        if self._on_event is not None:
            self._on_event(event)

    def _show(self, label: str, record: Record, eta_s: float) -> None:
        if self._console is None:
            return
        if record.status != "ok" and self._fault_lines < MAX_FAULT_LINES:
            self._fault_lines += 1
            self._console.print(escape(f"  {record.status}: {label}: {record.reason}"), soft_wrap=True)
        if self._bar is not None:
            text = f"{escape(label)}  [dim]{_left(eta_s)}[/dim]"
            self._bar.update(self._task, completed=self._done, description=text)
            return
        now = time.monotonic()
        if now - self._last_line >= LINE_EVERY_S or self._done == self._total:
            self._last_line = now
            self._console.print(
                escape(f"  {self._done}/{self._total} {label}{_latency(record)}, {_left(eta_s)}"), soft_wrap=True
            )


def _bar(console: Console | None, total: int, done: int) -> tuple[Progress | None, TaskID]:
    if console is None or not console.is_terminal:
        return None, TaskID(0)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, transient=True, refresh_per_second=4)
    return bar, bar.add_task("starting", total=total, completed=done)


def _latency(record: Record) -> str:
    return "" if record.latency_us is None else f" {record.latency_us:,.0f} us"


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s left" if minutes else f"{rest} s left"
