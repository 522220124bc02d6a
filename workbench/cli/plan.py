"""Commands that run nothing: plan, scenarios, schema."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.output import Format, console, print_json
from workbench.cli.traces import require_traces

if TYPE_CHECKING:
    from workbench.spec.scenario import Cell

MOST_ROWS = 60
PIPED_WIDTH = 140
GIB = 2**30
TITLES = {
    "suites": "Suites",
    "models": "Models",
    "hardware": "Hardware",
    "clusters": "Clusters",
}


def plan(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of a suite.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a field; may be repeated.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="A table, or strict JSON.")] = Format.TABLE,
    yes: Annotated[bool, typer.Option("--yes", help="Plan more than 10,000 cells.")] = False,
    search: Annotated[bool, typer.Option("--search", help="Search the best configuration for the goal.")] = False,
) -> None:
    """Show what a scenario would run: its cells, whether the whole model fits, and about how long it takes.

    Nothing is run. Every fault of the file is shown at once, and the exit status is then 2. With --search the best
    configuration for the scenario's goal, and why others lost; the exit status is 1 where none meets it.
    """
    from workbench.plan import cell_labels, estimate_seconds, plan_cells
    from workbench.spec.scenario_file import load_scenario

    file = load_scenario(scenario, overrides=tuple(overrides or ()))
    if search:
        from workbench.cli.search import run_search

        raise typer.Exit(run_search(file, scenario, form=form))
    cells = plan_cells(file, force=yes)
    require_traces(cells)
    labels, seconds = cell_labels(cells), estimate_seconds(cells)
    if form is Format.JSON:
        rows = [_row(cell, labels[cell.cell_id]) for cell in cells]
        print_json({"scenario": file.name, "count": len(cells), "estimated_s": round(seconds, 1), "cells": rows})
    else:
        _print_plan(file.name, cells, labels, seconds)


def scenarios(
    form: Annotated[Format, typer.Option("--format", help="A table, or strict JSON.")] = Format.TABLE,
) -> None:
    """List the suites, models, hardware and clusters that come with the workbench."""
    from workbench.spec.catalog import KINDS, describe, names

    kinds = ("suites", *(kind for kind in KINDS if kind != "suites"))
    listed = {kind: [{"name": name, "description": describe(kind, name)} for name in names(kind)] for kind in kinds}
    if form is Format.JSON:
        print_json(listed)
        return
    from rich.table import Table

    out = console()
    for kind, rows in listed.items():
        table = Table(title=TITLES[kind], title_justify="left", show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True, min_width=20)
        table.add_column()
        for row in rows:
            table.add_row(row["name"], row["description"])
        out.print(table)
        out.print()


def schema() -> None:
    """Print the JSON schema of a scenario file, for an editor that completes and checks YAML."""
    from workbench.spec.json_schema import scenario_schema

    print_json(scenario_schema())


def _row(cell: "Cell", label: str) -> dict[str, Any]:
    from workbench.run.describe import base_record_fields

    fields = {name: value for name, value in base_record_fields(cell).items() if name != "cell_json"}
    return {"label": label} | fields | {"method": cell.method} | _fit(cell)


def _fit(cell: "Cell") -> dict[str, Any]:
    """Memory of the whole model on its fullest GPU, of two pools that of the fuller; empty figures for a cell without a
    model."""
    from workbench.simulate.memory import model_fit
    from workbench.simulate.serving import prefill_cell

    if cell.model is None:
        return dict.fromkeys(("fits", "needed_bytes", "memory_bytes", "shortage_bytes"))
    fits = [model_fit(cell), *([model_fit(prefill_cell(cell))] if cell.serving is not None else [])]
    fit = max(fits, key=lambda one: one.needed_bytes - one.capacity_bytes)
    return {
        "fits": fit.fits if fit.capacity_bytes else None,
        "needed_bytes": fit.needed_bytes,
        "memory_bytes": fit.capacity_bytes or None,
        "shortage_bytes": fit.shortage_bytes,
    }


def _print_plan(name: str, cells: "tuple[Cell, ...]", labels: dict[str, str], seconds: float) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("cell", "label", "engine", "GPUs", "whole model, GiB a GPU", box=SIMPLE_HEAD)
    for cell in cells[:MOST_ROWS]:
        table.add_row(cell.cell_id, labels[cell.cell_id], cell.engine, _gpus_text(cell), _fit_text(_fit(cell)))
    out = console()
    if not out.is_terminal:
        out.width = PIPED_WIDTH
    out.print(table)
    if len(cells) > MOST_ROWS:
        out.print(f"and {len(cells) - MOST_ROWS} more; --format json lists them all")
    counts = {engine: sum(cell.engine == engine for cell in cells) for engine in ("measure", "simulate", "hybrid")}
    said = ", ".join(f"{number} {engine}" for engine, number in counts.items() if number)
    cells_said = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    out.print(f"{name}: {cells_said} ({said}), at most about {_duration(seconds)}", markup=False)


def _gpus_text(cell: "Cell") -> str:
    """GPUs and their part, of two pools those of each, prefill first."""
    if cell.serving is None:
        return f"{cell.cluster.num_gpus} {cell.cluster.hardware.name}"
    from workbench.spec.catalog import resolve_cluster

    clusters = [(pool.replicas, resolve_cluster(pool.cluster)) for pool in (cell.serving.prefill, cell.serving.decode)]
    return " + ".join(f"{replicas * cluster.num_gpus} {cluster.hardware.name}" for replicas, cluster in clusters)


def _fit_text(fit: dict[str, Any]) -> str:
    if fit["needed_bytes"] is None:
        return ""
    need = f"{fit['needed_bytes'] / GIB:.1f}"
    if fit["fits"] is None:
        return need
    return f"{need} of {fit['memory_bytes'] / GIB:.1f}{'' if fit['fits'] else ': does not fit'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
