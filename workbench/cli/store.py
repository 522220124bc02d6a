"""Commands that change what a results folder holds: merge, prune, import."""

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.output import console
from workbench.cli.results import RESULTS, ResultsOption, complete_run


def merge(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Run ids, parts of them, or paths.", autocompletion=complete_run),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the new run; that of the first.")] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Merge runs into a new one: where they share a cell, each is a repeat of it; the runs themselves stay."""
    from workbench.store.merge import merge_runs
    from workbench.store.run_folder import open_run

    merged = merge_runs([open_run(results, run) for run in runs], results_dir=results, name=name)
    repeats = merged.manifest()["repeats"]
    told = f"merged {len(runs)} runs as {merged.run_id}: {repeats} repeat{'s' * (repeats != 1)} of a cell at most"
    console().print(told, markup=False, soft_wrap=True)


def prune(
    keep: Annotated[int, typer.Option("--keep", help="Of each name, keep so many of the newest runs.")],
    name: Annotated[str | None, typer.Option("--name", help="Only runs of this name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; without it they are only listed.")] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """Delete old runs: of each name all but the newest; without --yes say which. Runs being written are kept."""
    from workbench.store.prune import remove_runs, runs_beyond

    out = console()
    beyond = runs_beyond(results, keep=keep, name=name)
    if not beyond:
        out.print(f"nothing to delete: no name has more than {keep} runs", markup=False)
        return
    gone = remove_runs(beyond) if yes else [info.run_id for info in beyond]
    for run_id in gone:
        out.print(f"{'deleted' if yes else 'would delete'} {run_id}", markup=False)
    if not yes:
        out.print(f"{len(gone)} run{'s' * (len(gone) > 1)}; say --yes to delete", markup=False)


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of a form that it recognises.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; that of the file.")] = None,
    told: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="What the file leaves open, as hardware=h200-sxm."),
    ] = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Import results: of `export`, of InferenceX (JSON), vLLM's benchmarks (JSON) or nccl-tests (its text)."""
    from workbench.store.importers import import_file as bring_in

    pairs = [text.partition("=") for text in told or []]
    for column, sign, value in pairs:
        if not (column and sign and value):
            raise ValueError(f"--set {column}{sign}{value}: write COLUMN=VALUE, such as hardware=h200-sxm")
    said = {column.strip(): value.strip() for column, _, value in pairs}
    folder = bring_in(file, results_dir=results, name=name, told=said)
    console().print(f"imported as run {folder.run_id}", markup=False)
