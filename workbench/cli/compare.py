"""The command that holds cells and runs against one another: compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.output import Format, console, print_json
from workbench.cli.results import RESULTS, FormatOption, ResultsOption, complete_run

if TYPE_CHECKING:
    import pandas as pd

    from workbench.analysis.compare import RunTables
    from workbench.analysis.watch import FailIf

RUNS = "Run id, a part of it, a path, or `latest`; several with commas between them are repeats."
SidesArgument = Annotated[str, typer.Argument(metavar="RUN[,RUN...]", help=RUNS, autocompletion=complete_run)]


def compare(
    run: SidesArgument,
    other: Annotated[
        str | None, typer.Argument(metavar="[RUN[,RUN...]]", help="Second side, judged against the first.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Column or dotted path that sets the cells apart.")] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="Value that the others are held against.")] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="RUN[,RUN...]", help="Baseline that RUN is judged against.")
    ] = None,
    fail_if: Annotated[
        str | None, typer.Option("--fail-if", metavar="slower:5%", help="Exit with status 1 when any cell is that.")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option("--noise", metavar="RUN[,RUN...]", help="A/A: repeats of one suite, whose scatter is the floor."),
    ] = None,
    results: ResultsOption = RESULTS,
    form: FormatOption = Format.TABLE,
) -> None:
    """Compare cells of a run by one path, or two runs cell by cell: faster, slower, same or unclear.

    A verdict needs two repeats a side or more: of `run --repeats 3`, of `merge`, or runs with commas between them.
    """
    from workbench.analysis.compare import compare_by, compare_runs
    from workbench.analysis.noise import noise_floors
    from workbench.analysis.watch import parse_fail_if

    first, second = _sides(run, other, against=against, by=by, baseline=baseline)
    rule = parse_fail_if(fail_if) if fail_if is not None else None
    floors = _floors(noise, results) if noise is not None else None
    tables = _tables(first, results)
    if second is None:
        frame = compare_by(tables.cells, tables.samples, by=by or "", baseline=baseline, floors=floors)
    else:
        frame = compare_runs(tables, _tables(second, results), floors=floors)
    own = floors if floors is not None else noise_floors(tables.cells, tables.samples)
    _answer(frame, by=by, runs=[side for side in (first, second) if side], floors=own, form=form)
    if rule is not None:
        _watch(frame, rule, form=form)


def _sides(
    run: str, other: str | None, *, against: str | None, by: str | None, baseline: str | None
) -> tuple[str, str | None]:
    """Baseline and candidate, or one side and None."""
    if sum(given is not None for given in (other, by, against)) != 1:
        raise ValueError(
            "compare: give either --by PATH or a second run (or --against RUN), as in `compare RUN --by precision`"
        )
    if baseline is not None and by is None:
        raise ValueError("--baseline: belongs to --by; of two runs the first is the baseline")
    return (against, run) if against is not None else (run, other)


def _tables(side: str, results: Path) -> "RunTables":
    from workbench.analysis.compare import RunTables
    from workbench.store.merge import pool
    from workbench.store.reader import to_frame
    from workbench.store.run_folder import open_run

    runs = [open_run(results, name.strip()) for name in side.split(",")]
    pooled = pool(runs, tables=("cells", "samples")).tables
    return RunTables(cells=to_frame(pooled["cells"]), samples=to_frame(pooled["samples"]))


def _floors(noise: str, results: Path) -> dict[str, float]:
    from workbench.analysis.noise import noise_floors

    tables = _tables(noise, results)
    floors = noise_floors(tables.cells, tables.samples)
    if not floors:
        raise ValueError(f"--noise {noise}: no cell was measured twice; give runs of one suite with commas between")
    return floors


def _answer(frame: "pd.DataFrame", *, by: str | None, runs: list[str], floors: dict[str, float], form: Format) -> None:
    from workbench.report.verdicts import print_verdicts

    if form is Format.JSON:
        print_json({"by": by, "runs": runs, "noise_floor": floors, "cells": frame})
        return
    out = console()
    print_verdicts(out, frame)
    for device, floor in floors.items():
        out.print(f"noise floor on {device}: repeats of one cell differ by up to {floor:.1%} (95% of pairs)")


def _watch(frame: "pd.DataFrame", rule: "FailIf", *, form: Format) -> None:
    from workbench.analysis.watch import judged, regressions

    found = regressions(frame, rule)
    if form is Format.TABLE:
        word = "error or " + rule.word if (found["why"] == "the candidate ended error").any() else rule.word
        said = f"{len(found) or 'no'} cell{'s' * (len(found) > 1)} {word}"
        said += f" by {rule.beyond:.1%} or more" if rule.beyond else ""
        console().print(f"{said}; {judged(frame).sum()} of {len(frame)} could be judged", markup=False)
    if len(found):
        raise typer.Exit(1)
