"""The command that runs a scenario as a Ray job on another machine: submit."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from workbench.cli.output import console
from workbench.cli.run import RESULTS, load_files, plan_files

if TYPE_CHECKING:
    from workbench.spec.scenario import Cell


def submit(
    scenario: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO...", help="Scenario files, or names of suites.")
    ] = None,
    address: Annotated[
        str, typer.Option("--address", metavar="URL", help="The cluster's job server, such as http://10.0.0.1:8265.")
    ] = "http://127.0.0.1:8265",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a field; may be repeated.")
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder here that the runs come back to.")] = RESULTS,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="JOB", help="Follow this job instead, and fetch its results.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the job to its end; otherwise print its id and return.")] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Run more than 10,000 cells.")] = False,
) -> None:
    """Run scenarios as a Ray job: code and scenario travel there, log and results come back to this machine."""
    if not scenario and attach is None:
        raise ValueError("submit: name a scenario file or a suite, or --attach JOB")
    from workbench.orchestrate.submit import follow
    from workbench.orchestrate.submit import submit as start
    from workbench.spec.found import AsAsked

    talk = Console(stderr=True, highlight=False)
    if attach is None:
        files = load_files(scenario or [], engine=None, overrides=overrides or [])
        cells = plan_files(files, yes=yes, found=AsAsked())
        arguments = [part for given in overrides or [] for part in ("--set", given)] + (["--yes"] if yes else [])
        texts = [file.text for file in files]
        job_id = start(arguments, scenarios=texts, files=_read_files(cells), address=address)
        talk.print(f"job {job_id}: {len(cells)} cells", markup=False)
    else:
        job_id = attach
    again = f"moe-workbench submit --attach {job_id} --address {address}"
    if not wait:
        console().print(job_id, markup=False)
        talk.print(f"fetch its results with: {again}", markup=False, soft_wrap=True)
        return
    try:
        ended = follow(
            job_id,
            address=address,
            results_dir=results,
            say=lambda line: talk.print(line, markup=False, soft_wrap=True),
        )
    except KeyboardInterrupt:
        talk.print(f"job {job_id} goes on; follow it with: {again}", markup=False, soft_wrap=True)
        raise
    for run in ended.runs:
        console().print(f"results: {run}", markup=False, soft_wrap=True)
    if ended.status != "SUCCEEDED":
        talk.print(f"job {job_id} {ended.status.lower()}: {ended.message or 'see its log above'}", markup=False)
        raise typer.Exit(1)
    if not ended.runs:
        talk.print(f"job {job_id} ended without results", markup=False)
        raise typer.Exit(1)


def _read_files(cells: "Iterable[Cell]") -> list[Path]:
    """Files that the cells read: recorded traces and activations.

    Raises ValueError for one outside the working directory, which has no place on the cluster.
    """
    paths = {
        Path(part.path)
        for cell in cells
        for part in (cell.workload.skew, cell.workload.data)
        if getattr(part, "path", None)
    }
    for path in sorted(paths):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path}: a file that travels to a cluster is named from the working directory downwards")
        if not path.is_file():
            raise ValueError(f"{path}: no such file here")
    return sorted(paths)
