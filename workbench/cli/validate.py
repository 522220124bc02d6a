"""``moe-workbench validate``: predictions against measurements that they were not made from."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from workbench.spec.validation import ValidationRow

_HIDDEN = ("section", "held_out", "points", "goal", "met")


def validate(
    section: Annotated[list[str] | None, typer.Option(help="Section to run; repeat it. Every one if left out.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Only the lines that a goal is set for.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Parquet file for the single predictions, the table `validation`.")
    ] = Path("results/validation.parquet"),
    form: Annotated[Format, typer.Option("--format", help="Form of the answer.")] = Format.TABLE,
) -> None:
    """Compare the simulator with published and own measurements, error by method; say what was held out.

    Takes under a minute.
    """
    from workbench.analysis.validation import write_points
    from workbench.run.validation import SECTIONS
    from workbench.run.validation import section as section_of

    rows = [row for function in [section_of(name) for name in section or SECTIONS] for row in function()]
    write_points([point for row in rows for point in row.points], output)
    shown = [row for row in rows if row.goal is not None or not summary]
    if form is Format.JSON:
        print_json({"validation": [as_dict(row) for row in shown], "table": str(output)})
        return
    print_rows(shown)
    console().print(f"single predictions: {output}", markup=False)


def as_dict(row: "ValidationRow") -> dict[str, Any]:
    """The row without its single points."""
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name != "points"}


def print_rows(rows: "list[ValidationRow]") -> None:
    """A table a section, under it what its lines held out."""
    from workbench.report.terminal import plain_table

    screen = console()
    for name in dict.fromkeys(row.section for row in rows):
        lines = [row for row in rows if row.section == name]
        shown = [field.name for field in fields(lines[0]) if field.name not in _HIDDEN]
        shown = [column for column in shown if any(getattr(row, column) not in (None, "all") for row in lines)]
        table = plain_table(name)
        for column in shown:
            table.add_column(column, overflow="fold")
        table.add_column("goal")
        for row in lines:
            verdict = "" if row.goal is None else "holds" if row.met else "missed"
            table.add_row(*(_cell(getattr(row, column)) for column in shown), verdict)
        screen.print(table)
        for text in _said(lines):
            screen.print(f"- {text}", markup=False)


def _said(lines: "list[ValidationRow]") -> list[str]:
    """The goals with what was held out, then what was held out of the other lines."""
    goals = [
        f"{row.method}, {row.split}: {row.goal}: {'holds' if row.met else 'missed'}. Held out: {row.held_out}"
        for row in lines
        if row.goal is not None
    ]
    told = {row.held_out for row in lines if row.goal is not None}
    others = {row.held_out: f"{row.method}, {row.split}: {row.held_out}" for row in reversed(lines)}
    return goals + [text for held_out, text in reversed(others.items()) if held_out and held_out not in told]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)
