"""Commands that start and stop runs: run, stop."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from workbench.cli.output import Format, console, print_json
from workbench.cli.repeats import run_repeats
from workbench.cli.results import RESULTS, ResultsOption, RunArgument
from workbench.cli.traces import require_traces

if TYPE_CHECKING:
    from workbench.orchestrate.execute import RunSummary
    from workbench.spec.found import FoundCluster
    from workbench.spec.scenario import Cell
    from workbench.spec.scenario_file import ScenarioFile

STOP_WAIT_S = 30.0
MOST_ROWS = 200


class Engine(StrEnum):
    """The ways to a cell's figures."""

    MEASURE = "measure"
    SIMULATE = "simulate"
    HYBRID = "hybrid"


def run(
    scenario: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO...", help="Scenario files, or names of suites.")
    ] = None,
    engine: Annotated[Engine | None, typer.Option("--engine", help="For every cell.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a field; may be repeated.")
    ] = None,
    results: ResultsOption = RESULTS,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Join this Ray cluster; else one of its own.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Finish this run; its own plan if no SCENARIO.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the run's id and go on in the background.")] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Keep a torch profiler trace of each measured cell, made after its samples."),
    ] = False,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Measure all this many times anew; a verdict needs 2, better 3.")
    ] = 1,
    form: Annotated[Format, typer.Option("--format", help="A table, or strict JSON.")] = Format.TABLE,
    yes: Annotated[bool, typer.Option("--yes", help="Run more than 10,000 cells.")] = False,
) -> None:
    """Run scenarios: every cell ends as ok, unsupported, infeasible or error, with its reason."""
    if not scenario and resume is None:
        raise ValueError("run: name a scenario file or a suite (moe-workbench scenarios lists them), or --resume RUN")
    files = load_files(scenario or [], engine=engine, overrides=overrides or [])
    if repeats != 1 and (detach or resume is not None):
        raise ValueError("--repeats: goes neither with --detach nor with --resume; start several runs and merge them")
    cells = plan_files(files, yes=yes, found=_found(address) if files else None)
    if detach:
        _detach(files, cells, results=results, address=address, resume=resume, profile=profile, form=form)
        return
    from workbench.orchestrate.execute import execute
    from workbench.store.bucket import send_run

    talk = Console(stderr=True, highlight=False)

    def run_once(chosen: "Sequence[Cell]") -> "RunSummary":
        return execute(
            chosen,
            scenario_name=_name(files),
            scenario_text=_text(files),
            results_dir=results,
            address=address,
            resume=resume,
            console=talk,
            profile=profile,
        )

    summary = run_repeats(cells, repeats, run_once, talk=talk)
    send_run(summary.path)
    _report(summary, results=results, form=form, talk=talk)
    raise typer.Exit(summary.exit_status)


def stop(
    run: RunArgument,
    results: ResultsOption = RESULTS,
) -> None:
    """Stop a run: it gives up the cell in flight, keeps what is done, and can be resumed."""
    from workbench.store.run_folder import open_run, run_info

    folder = open_run(results, run)
    out = console()
    status = run_info(folder).status
    if status != "running":
        out.print(f"run {folder.run_id} is not running ({status})", markup=False)
        return
    folder.stop_path.touch()
    deadline = time.monotonic() + STOP_WAIT_S
    while run_info(folder).status == "running":
        if time.monotonic() > deadline:
            out.print(f"run {folder.run_id} was asked to stop and is still ending its cell", markup=False)
            raise typer.Exit(1)
        time.sleep(0.2)
    out.print(f"stopped run {folder.run_id}; finish it with: {_resume_command(folder.run_id, results)}", markup=False)


def load_files(scenarios: list[str], *, engine: Engine | None, overrides: list[str]) -> "list[ScenarioFile]":
    """Scenario files and suites, with the overrides laid over them."""
    from workbench.spec.scenario_file import load_scenario

    given = [*overrides, *([f"engine={engine}"] if engine is not None else [])]
    return [load_scenario(reference, overrides=tuple(given)) for reference in scenarios]


def _found(address: str | None) -> "FoundCluster | None":
    """What the Ray cluster at ``address`` has; ValueError where none answers that fits this process."""
    if address is None:
        return None
    from workbench.orchestrate.join import check_address

    return check_address(address)


def plan_files(files: "list[ScenarioFile]", *, yes: bool, found: "FoundCluster | None" = None) -> "list[Cell]":
    """Their cells, on the cluster that was found; ValueError for more than 10,000 without ``yes``."""
    from workbench.plan import MAX_CELLS, count_cells, plan_cells

    count = sum(count_cells(file) for file in files)
    if count > MAX_CELLS and not yes:
        mend = "narrow the matrix, or say --yes to run them all"
        raise ValueError(f"{count:,} cells are more than {MAX_CELLS:,}; {mend}")
    cells = [cell for file in files for cell in plan_cells(file, force=yes, found=found)]
    require_traces(cells)
    return cells


def _name(files: "list[ScenarioFile]") -> str:
    return "+".join(file.name for file in files) or "resumed"


def _text(files: "list[ScenarioFile]") -> str:
    return "---\n".join(file.text for file in files)


def _detach(
    files: "list[ScenarioFile]",
    cells: "list[Cell]",
    *,
    results: Path,
    address: str | None,
    resume: str | None,
    profile: bool,
    form: Format,
) -> None:
    """The folder and the plan are made here, so that what cannot be is refused here; a child resumes the run."""
    from workbench.orchestrate.execute import extend_run, prepare_run
    from workbench.orchestrate.join import check_address
    from workbench.store.run_folder import open_run

    if address is not None:
        check_address(address)
    if resume is None:
        folder = prepare_run(
            cells, scenario_name=_name(files), scenario_text=_text(files), results_dir=results, address=address
        )
    else:
        folder = open_run(results, resume)
        extend_run(folder, cells)
    command = [sys.executable, "-m", "workbench.cli.main", "run", "--resume", str(folder.path.resolve())]
    command += ["--address", address] if address is not None else []
    command += ["--profile"] if profile else []
    with (folder.path / "driver.log").open("ab") as log:
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_child_environment()
        )
    if form is Format.JSON:
        print_json({"run_id": folder.run_id, "path": folder.path})
    else:
        console().print(folder.run_id, markup=False)


def _child_environment() -> dict[str, str]:
    """The child finds this very code, also when it was started from a checkout that is not installed."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _report(summary: "RunSummary", *, results: Path, form: Format, talk: Console) -> None:
    from workbench.orchestrate.execute import PROFILES
    from workbench.report.terminal import print_table
    from workbench.store.reader import read_table
    from workbench.store.run_folder import RunFolder

    folder = RunFolder(path=summary.path, run_id=summary.run_id)
    cells = read_table(folder, "cells").frame
    where = _where(results)
    if form is Format.JSON:
        print_json(
            {"run_id": summary.run_id, "path": summary.path, "status": summary.status, "counts": summary.counts,
             "cells": cells}
        )  # fmt: skip
    else:
        out = console()
        if len(cells) <= MOST_ROWS:
            print_table(out, cells)
        else:
            out.print(f"{len(cells):,} cells; see them with: moe-workbench show {summary.run_id}{where}", markup=False)
        counts = ", ".join(f"{number} {status}" for status, number in summary.counts.items() if number)
        out.print(f"{counts or 'no cell'} of run {summary.run_id}", markup=False, soft_wrap=True)
        out.print(f"results: {summary.path}", markup=False, soft_wrap=True)
        if (summary.path / PROFILES).is_dir():
            out.print(f"traces:  {summary.path / PROFILES}", markup=False, soft_wrap=True)
        out.print(f"report:  moe-workbench report {summary.run_id}{where} -o report.html", markup=False, soft_wrap=True)
    if summary.status == "stopped":
        left = f"{summary.num_left} cell{'s' if summary.num_left != 1 else ''} left"
        command = _resume_command(summary.run_id, results)
        talk.print(f"stopped by {summary.why_stopped}, {left}; finish with: {command}", markup=False, soft_wrap=True)


def _resume_command(run_id: str, results: Path) -> str:
    return f"moe-workbench run --resume {run_id}{_where(results)}"


def _where(results: Path) -> str:
    from workbench.store.bucket import place_of

    return "" if results == RESULTS else f" --results {place_of(results)}"
