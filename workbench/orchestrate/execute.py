"""A plan becomes a run: every cell ends as an outcome in the run's folder, and what is done stays done."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from workbench.orchestrate.batches import FEW, simulate_here, simulate_in_tasks
from workbench.orchestrate.join import SessionError, check_address
from workbench.orchestrate.planned import read_plan, unique_cells, write_plan
from workbench.orchestrate.progress import RunProgress
from workbench.orchestrate.session import Session, open_session
from workbench.orchestrate.stopping import Stopped, StopRequest, heed_signals
from workbench.run.describe import failed
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder, create_run, open_run
from workbench.store.writer import Writer

PROFILES = "profiles"
"""Folder of a run that holds traces, ``<cell id>.json.gz`` each."""
Event = Callable[[Mapping[str, Any]], None]
Finished = Generator[tuple[Cell, Outcome], None, None]


@dataclass(frozen=True)
class RunSummary:
    """How a run ended. ``counts`` holds all its cells by status, also those of earlier attempts."""

    run_id: str
    path: Path
    counts: Mapping[str, int]
    exit_status: int
    status: str
    why_stopped: str | None = None
    num_left: int = 0


def prepare_run(
    cells: Sequence[Cell],
    *,
    scenario_name: str,
    scenario_text: str,
    results_dir: Path | str,
    address: str | None = None,
) -> RunFolder:
    """The folder of a new run with its manifest and plan, before any work. Raises ValueError when it cannot be."""
    from workbench.run.machine import describe_machine

    manifest = {
        "scenario_text": scenario_text,
        "num_cells": len(cells),
        "engines": sorted({cell.engine for cell in cells}),
        "address": address,
        "machine": describe_machine(),
    }
    run = create_run(results_dir, name=scenario_name, manifest=manifest)
    write_plan(run, unique_cells(cells))
    return run


def execute(
    cells: Sequence[Cell],
    *,
    scenario_name: str,
    scenario_text: str,
    results_dir: Path | str,
    address: str | None = None,
    resume: str | None = None,
    on_event: Event | None = None,
    console: Console | None = None,
    session: Session | None = None,
    allowance_s: float | None = None,
    profile: bool = False,
) -> RunSummary:
    """Run ``cells`` into a new folder of ``results_dir``, or finish the run ``resume`` (no cells: those of its plan).

    ``session`` is a Ray session to use instead of opening one; ``allowance_s`` replaces the time a measured cell may
    take beyond its sampling; ``profile`` keeps a trace of each measured cell in the run's folder ``profiles``. Raises
    ValueError for a folder or an address that cannot be used.
    """
    if address is not None and session is None:
        check_address(address)
    wanted = unique_cells(cells)
    if resume is None:
        run = prepare_run(
            wanted,
            scenario_name=scenario_name,
            scenario_text=scenario_text,
            results_dir=results_dir,
            address=address,
        )
    else:
        run = open_run(results_dir, resume)
        wanted = extend_run(run, wanted)
        address = address or run.manifest().get("address")
    driver = _Driver(run, address=address, session=session, console=console, allowance_s=allowance_s, profile=profile)
    return driver.drive(wanted, on_event)


def extend_run(run: RunFolder, cells: Sequence[Cell]) -> list[Cell]:
    """The plan of an existing run with ``cells`` added to it. Raises ValueError when there is no plan to read."""
    if not cells:
        return read_plan(run)
    try:
        planned = unique_cells([*read_plan(run), *cells])
    except ValueError:
        planned = unique_cells(cells)
    write_plan(run, planned)
    return planned


class _Driver:
    """One attempt at a run."""

    def __init__(
        self,
        run: RunFolder,
        *,
        address: str | None,
        session: Session | None,
        console: Console | None,
        allowance_s: float | None,
        profile: bool,
    ) -> None:
        self._run = run
        self._address = address
        self._session = session
        self._console = console
        self._allowance_s = allowance_s
        self._profiles = run.path / PROFILES if profile else None
        self._stop = StopRequest(run.stop_path)

    def drive(self, wanted: list[Cell], on_event: Event | None) -> RunSummary:
        with Writer(self._run) as writer, heed_signals(self._stop):
            self._run.stop_path.unlink(missing_ok=True)
            finished = writer.finished_ids()
            pending = [cell for cell in wanted if cell.cell_id not in finished]
            progress = RunProgress(
                self._run.progress_path,
                run_id=self._run.run_id,
                cells=pending,
                num_done=len(wanted) - len(pending),
                console=self._console,
                on_event=on_event,
            )
            with progress:
                status = self._keep_all(pending, writer, progress)
        return self._summary(wanted, status)

    def _keep_all(self, pending: list[Cell], writer: Writer, progress: RunProgress) -> str:
        status, num_left = "failed", len(pending)
        try:
            with closing(self._finish(pending, progress)) as finished:
                for cell, outcome in finished:
                    writer.add(outcome)
                    progress.cell(cell, outcome)
                    num_left -= 1
                    if self._stop():
                        break
            status = "stopped" if num_left else "finished"
        except (Stopped, KeyboardInterrupt) as end:
            status = "stopped"
            if isinstance(end, KeyboardInterrupt):
                raise
        finally:
            writer.flush()
            progress.end(status)
        return status

    def _finish(self, pending: list[Cell], progress: RunProgress) -> Finished:
        """Simulated cells first, while the first gang starts, so that none disturbs a measurement."""
        simulated = [cell for cell in pending if cell.engine == "simulate"]
        measured = [cell for cell in pending if cell.engine != "simulate"]
        if self._profiles is not None and not measured:
            progress.note("no cell of this run is measured, so there is nothing to profile")
        if not measured and len(simulated) < FEW:
            yield from simulate_here(simulated)
            return
        with ExitStack() as stack:
            try:
                session = stack.enter_context(self._opened())
            except SessionError as error:
                if self._address is not None:
                    raise
                progress.note(str(error))
                yield from simulate_here(simulated)
                yield from ((cell, failed(cell, str(error))) for cell in measured)
                return
            where = "this machine" if session.is_local else session.address
            progress.note(f"Ray is up on {where}")
            yield from self._on_ray(session, simulated, measured, progress)

    @contextmanager
    def _opened(self) -> Iterator[Session]:
        if self._session is not None:
            yield self._session
            return
        with open_session(self._address) as session, heed_signals(self._stop):  # Ray installs a SIGTERM handler
            yield session

    def _on_ray(self, session: Session, simulated: list[Cell], measured: list[Cell], progress: RunProgress) -> Finished:
        if not measured:
            yield from simulate_in_tasks(session, simulated, should_stop=self._stop)
            return
        from workbench.orchestrate.placement import shape_of
        from workbench.orchestrate.ranks import Ranks, by_shape, measure_cells

        ordered = by_shape(measured)
        ranks = Ranks(session, should_stop=self._stop, note=progress.note, allowance_s=self._allowance_s)
        try:
            ranks.begin(shape_of(ordered[0]))
            if len(simulated) < FEW:
                yield from simulate_here(simulated)
            else:
                yield from simulate_in_tasks(session, simulated, should_stop=self._stop)
            if not self._stop():
                yield from measure_cells(ranks, ordered, profiles=self._profiles)
        finally:
            ranks.end()

    def _summary(self, wanted: list[Cell], status: str) -> RunSummary:
        frame = read_table(self._run, "cells").frame
        ids = {cell.cell_id for cell in wanted}
        ended = frame[frame["cell_id"].isin(ids)]["status"]
        counts = {name: int((ended == name).sum()) for name in ("ok", "unsupported", "infeasible", "error")}
        return RunSummary(
            run_id=self._run.run_id,
            path=self._run.path,
            counts=counts,
            exit_status=exit_status(counts),
            status=status,
            why_stopped=self._stop.why,
            num_left=len(wanted) - len(ended),
        )


def exit_status(counts: Mapping[str, int]) -> int:
    """1 when a cell ended in error or none ended ok, else 0."""
    return 1 if counts.get("error", 0) or not counts.get("ok", 0) else 0
