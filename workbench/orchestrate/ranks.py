"""Measured cells: which gang runs them, and how a cell ends when its gang does not survive it."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.orchestrate.actor import RankFailure, Task
from workbench.orchestrate.gang import Gang, GangLost, ask_gang, await_gang, begin_gang, end_gang, reopen_gang
from workbench.orchestrate.placement import GangShape, Infeasible, shape_of
from workbench.orchestrate.session import Session
from workbench.orchestrate.stopping import Stopped
from workbench.run.describe import failed, infeasible, unsupported
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell

if TYPE_CHECKING:
    from workbench.run.context import RankContext

ALLOWANCE_S = {"cpu": 120.0, "cuda": 300.0}
MAX_LOSSES = 3
VIRTUAL = "virtual_nodes"


def cell_limit_s(cell: Cell, *, allowance_s: float | None = None) -> float:
    """Seconds after which a measured cell counts as hung: time to prepare and compile, and four sampling budgets."""
    prepare = ALLOWANCE_S[cell.cluster.device] if allowance_s is None else allowance_s
    return prepare + 4 * cell.measure.max_seconds


def by_shape(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in planned order, except that those of one gang shape stand together, so that a gang starts once."""
    shapes = list(dict.fromkeys(shape_of(cell) for cell in cells))
    return sorted(cells, key=lambda cell: shapes.index(shape_of(cell)))


class Ranks:
    """Keeps the gang that the current cell needs; a gang lost three times in a row for one shape stays down."""

    def __init__(
        self,
        session: Session,
        *,
        should_stop: Callable[[], bool],
        note: Callable[[str], None],
        allowance_s: float | None = None,
    ) -> None:
        self._session = session
        self._should_stop = should_stop
        self._note = note
        self._allowance_s = allowance_s
        self._gang: Gang | None = None
        self._losses: dict[GangShape, int] = {}
        self._last_loss: dict[GangShape, str] = {}
        self._refused: dict[GangShape, str] = {}

    @property
    def gang(self) -> Gang | None:
        """The gang that is up or coming up."""
        return self._gang

    def begin(self, shape: GangShape) -> None:
        """Start the processes of a gang without waiting for them; a refusal is kept for ``measure`` to report."""
        if self._gang is not None and self._gang.shape == shape:
            return
        self.end()
        try:
            self._gang = begin_gang(self._session, shape)
        except Infeasible as reason:
            self._refused[shape] = str(reason)

    def end(self) -> None:
        """End the gang that is up."""
        if self._gang is not None:
            end_gang(self._gang)
            self._gang = None

    def renew(self) -> None:
        """After a cell in error the processes that answered live on, but their group may hold half an exchange."""
        gang = self._gang
        if gang is None:
            return
        if gang.shape.device == "cuda":
            self.end()  # a CUDA fault stays with its process
            return
        try:
            reopen_gang(gang, should_stop=self._should_stop)
        except GangLost as loss:
            self._lose(gang.shape, loss)

    def measure(self, cell: Cell, task: Task) -> Outcome | list[Any]:
        """The answers of the cell's ranks, or the outcome of a cell that gave none. Raises Stopped."""
        shape = shape_of(cell)
        if self._losses.get(shape, 0) >= MAX_LOSSES:
            reason = f"not run: the gang of {shape} was lost {MAX_LOSSES} times in a row ({self._last_loss[shape]})"
            return failed(cell, reason)
        try:
            gang = self._ready(shape)
            answers = ask_gang(
                gang,
                task,
                cell,
                limit_s=cell_limit_s(cell, allowance_s=self._allowance_s),
                should_stop=self._should_stop,
            )
        except Infeasible as reason:
            self.end()
            self._refused[shape] = str(reason)
            return infeasible(cell, str(reason))
        except GangLost as loss:
            self._lose(shape, loss)
            return failed(cell, str(loss))
        except Stopped:
            self.end()
            raise
        failures = [answer for answer in answers if isinstance(answer, RankFailure)]
        self._losses[shape] = 0
        return self._explain(cell, failures) if failures else answers

    def _ready(self, shape: GangShape) -> Gang:
        if shape in self._refused:
            raise Infeasible(self._refused[shape])
        self.begin(shape)
        if self._gang is None:
            raise Infeasible(self._refused[shape])
        if not self._gang.facts:
            await_gang(self._gang, should_stop=self._should_stop)
            hosts = sorted({fact.host for fact in self._gang.facts})
            self._note(f"gang of {shape} is up on {', '.join(hosts)}")
        return self._gang

    def _lose(self, shape: GangShape, loss: GangLost) -> None:
        self.end()
        self._losses[shape] = self._losses.get(shape, 0) + 1
        self._last_loss[shape] = str(loss)
        self._note(f"gang of {shape} ended: {loss}")

    def _explain(self, cell: Cell, failures: list[RankFailure]) -> Outcome:
        real = [failure for failure in failures if not failure.is_unsupported]
        if not real:
            return unsupported(cell, failures[0].message)
        self._note(f"rank {real[0].rank} raised in {cell.cell_id}\n{real[0].trace}")
        return failed(cell, f"rank {real[0].rank}: {real[0].message}")


def measured_rank(context: "RankContext", cell: Cell) -> Any:
    """What a rank runs for a measured or hybrid cell."""
    from workbench.run.measured import run_rank

    return run_rank(cell, context)


def profiled_rank(context: "RankContext", cell: Cell) -> Any:
    """``measured_rank`` that keeps a trace too."""
    from workbench.run.measured import run_rank

    return run_rank(cell, context, profile=True)


def measure_cells(
    ranks: Ranks, cells: Sequence[Cell], *, profiles: Path | None = None
) -> Iterator[tuple[Cell, Outcome]]:
    """Measure cells one after another, each with every rank of its gang. Raises Stopped.

    With ``profiles`` the trace of each cell's first rank goes into that folder.
    """
    for cell in cells:
        answers = ranks.measure(cell, measured_rank if profiles is None else profiled_rank)
        outcome = answers if isinstance(answers, Outcome) else _merge(cell, answers)
        if profiles is not None and not isinstance(answers, Outcome):
            _keep_trace(profiles, cell, answers)
        if outcome.record.status == "error":
            ranks.renew()
        yield cell, _with_placement(cell, outcome, ranks.gang)


def _merge(cell: Cell, reports: list[Any]) -> Outcome:
    from workbench.run.hybrid import merge_hybrid
    from workbench.run.measured import merge_reports

    try:
        outcome = merge_reports(cell, reports)
        return merge_hybrid(cell, outcome) if cell.engine == "hybrid" and outcome.record.status == "ok" else outcome
    except Exception as error:
        return failed(cell, f"{type(error).__name__}: {error}")


def _keep_trace(profiles: Path, cell: Cell, reports: list[Any]) -> None:
    trace = next((report.trace for report in reports if report.trace is not None), None)
    if trace is None:
        return
    profiles.mkdir(exist_ok=True)
    path = profiles / f"{cell.cell_id}.json.gz"
    part = path.with_suffix(".part")
    part.write_bytes(trace)
    os.replace(part, path)


def _with_placement(cell: Cell, outcome: Outcome, gang: Gang | None) -> Outcome:
    """The flag ``virtual_nodes`` by what was so: ranks of several nodes that shared a host."""
    if gang is None or not gang.facts or outcome.record.status != "ok":
        return outcome
    num_nodes = len({rank // cell.cluster.gpus_per_node for rank in cell.measured_ranks})
    num_hosts = len({fact.host for fact in gang.facts})
    flags = [flag for flag in (outcome.record.flags or "").split(",") if flag not in ("", VIRTUAL)]
    if num_hosts < num_nodes:
        flags.append(VIRTUAL)
    return replace(outcome, record=replace(outcome.record, flags=",".join(flags) or None))
