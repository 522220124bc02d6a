"""Commands over finished runs: runs, show, export."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.output import Format, console, print_json, print_text
from workbench.store.bucket import results_path

if TYPE_CHECKING:
    import pandas as pd

    from workbench.store.run_folder import RunFolder, RunInfo


RESULTS = Path("results")
MOST_PROBLEMS = 10


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs for a shell, newest first."""
    from workbench.store.run_folder import run_folders

    runs = [run.run_id for run in run_folders(results_path(ctx.params.get("results") or RESULTS))]
    return [name for name in ["latest", *reversed(runs)] if name.startswith(incomplete)]


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run id, a unique part of it, a path, or `latest`.", autocompletion=complete_run
    ),
]
ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results", parser=results_path, metavar="DIR", help="Folder that holds the runs, or a URL as s3://team/runs."
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="A table, or strict JSON.")]


class ExportFormat(StrEnum):
    """Forms that a run can leave in."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    CHROME_TRACE = "chrome-trace"


def runs(
    name: Annotated[str | None, typer.Option("--name", help="Runs whose name holds this text.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="finished, running, stopped, failed, ...")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="DATE", help="Made then or later.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="With such a cell; repeat it, commas mean or."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Only so many, the newest.")] = None,
    results: ResultsOption = RESULTS,
    form: FormatOption = Format.TABLE,
) -> None:
    """List the runs of a results folder."""
    from workbench.store.damage import store_problems
    from workbench.store.find import find_runs

    infos = find_runs(results, name=name, status=status, since=since, where=where or (), limit=limit)
    problems = store_problems(results)
    if form is Format.JSON:
        print_json({"runs": infos, "problems": problems})
        return
    filtered = any(given for given in (name, status, since, where))
    _print_runs(
        infos,
        nothing=f"no such run in {results}"
        if filtered
        else f"no runs in {results}; start one with: moe-workbench run SCENARIO",
    )
    for problem in problems[:MOST_PROBLEMS]:
        console().print(f"passed over: {problem}", markup=False, soft_wrap=True)
    if len(problems) > MOST_PROBLEMS:
        console().print(f"and {len(problems) - MOST_PROBLEMS} more; --format json names all", markup=False)


def _print_runs(infos: "list[RunInfo]", *, nothing: str) -> None:
    from workbench.report.terminal import plain_table

    if not infos:
        console().print(nothing, markup=False)
        return
    table = plain_table()
    for column in ("run", "name", "status", "cells"):
        table.add_column(column, overflow="fold")
    for info in infos:
        counts = ", ".join(f"{number} {status}" for status, number in info.counts.items())
        table.add_row(info.run_id, info.name, info.status, counts or "none yet")
    console().print(table)


def show(run: RunArgument = "latest", results: ResultsOption = RESULTS, form: FormatOption = Format.TABLE) -> None:
    """Show the cells of a run."""
    from dataclasses import asdict

    from workbench.report.terminal import print_table
    from workbench.store.progress import read_events
    from workbench.store.reader import read_table, unreadable_files
    from workbench.store.run_folder import open_run, run_info

    folder = open_run(results, run)
    info, cells = run_info(folder), read_table(folder, "cells").frame
    bad_files, (_, torn_lines) = unreadable_files(folder), read_events(folder.progress_path)
    if form is Format.JSON:
        damage = {"bad_files": bad_files, "torn_lines": torn_lines}
        print_json({"run": asdict(info) | damage, "cells": cells})
        return
    out = console()
    out.print(f"{info.name}: {info.status}, run {info.run_id}", markup=False)
    print_table(out, cells)
    for name in bad_files:
        out.print(f"unreadable, passed over: {name} (run again with --resume {info.run_id})", markup=False)
    for number in torn_lines:
        out.print(f"progress.jsonl line {number} is torn, passed over", markup=False)


def export(
    run: RunArgument = "latest",
    form: Annotated[ExportFormat, typer.Option("--format", help="Form of the file.")] = ExportFormat.CSV,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File; standard output if left out.")] = None,
    table: Annotated[str, typer.Option("--table", help="Table for csv and parquet.")] = "cells",
    results: ResultsOption = RESULTS,
) -> None:
    """Export a run: csv or parquet of one table, json of all, chrome-trace of every rank's stages, for Perfetto."""
    from workbench.store.run_folder import open_run

    if form is ExportFormat.PARQUET and output is None:
        raise ValueError("--format parquet: needs --output FILE, it is no text for a terminal")
    data = _exported(open_run(results, run), form=form, table=table)
    if output is None:
        print_text(data.decode("utf-8"))
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(data)
    except OSError as error:
        raise ValueError(f"--output {output}: cannot be written ({error.strerror or error})") from error
    console().print(f"wrote {output}", markup=False)


def _exported(folder: "RunFolder", *, form: ExportFormat, table: str) -> bytes:
    from workbench.report.trace import chrome_trace
    from workbench.store.exporters import csv_bytes, json_bytes, parquet_bytes
    from workbench.store.reader import read_table
    from workbench.store.strict_json import to_json

    match form:
        case ExportFormat.CSV:
            return csv_bytes(folder, table=table)
        case ExportFormat.PARQUET:
            return parquet_bytes(folder, table=table)
        case ExportFormat.JSON:
            return json_bytes(folder)
    cells = read_table(folder, "cells").frame
    stages = _of_every_rank(cells, read_table(folder, "stages").frame)
    return to_json(chrome_trace(cells, stages)).encode("utf-8")


def _of_every_rank(cells: "pd.DataFrame", stages: "pd.DataFrame") -> "pd.DataFrame":
    """``stages`` with all ranks of the simulated cells; a measured cell has them already."""
    import json

    import pandas as pd

    from workbench.run.every_rank import every_rank
    from workbench.spec.scenario import Cell

    simulated = cells[cells["status"].eq("ok") & cells["engine"].eq("simulate")]
    planned = []
    for text in simulated["cell_json"]:
        try:
            planned.append(Cell.model_validate(json.loads(text)))
        except (TypeError, ValueError):  # of another version, or brought in from elsewhere
            continue
    rows = every_rank(planned)
    if len(rows) < len(simulated):
        typer.echo(f"all ranks of {len(rows)} of {len(simulated)} simulated cells, two of the others", err=True)
    kept = stages[~stages["cell_id"].isin(list(rows))]
    return pd.concat([kept, *(pd.DataFrame(more) for more in rows.values())], ignore_index=True)
