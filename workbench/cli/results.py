"""Commands over finished runs: runs, show, export."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.output import Format, console, print_json, print_text

if TYPE_CHECKING:
    from workbench.store.run_folder import RunFolder

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique part of it, a path, or `latest`.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder that holds the runs.")]
FormatOption = Annotated[Format, typer.Option("--format", help="A table, or strict JSON.")]
RESULTS = Path("results")


class ExportFormat(StrEnum):
    """Forms that a run can leave in."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    CHROME_TRACE = "chrome-trace"


def runs(results: ResultsOption = RESULTS, form: FormatOption = Format.TABLE) -> None:
    """List the runs of a results folder."""
    from workbench.report.terminal import plain_table
    from workbench.store.run_folder import list_runs

    infos = list_runs(results)
    if form is Format.JSON:
        print_json({"runs": infos})
        return
    if not infos:
        console().print(f"no runs in {results}; start one with: moe-workbench run SCENARIO", markup=False)
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
    """Export a run: csv or parquet of one table, json of all, chrome-trace of the stages."""
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
    trace = chrome_trace(read_table(folder, "cells").frame, read_table(folder, "stages").frame)
    return to_json(trace).encode("utf-8")
