"""``moe-workbench validate``: predictions against measurements that they were not made from."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from workbench.spec.validation import ValidationRow

_HIDDEN = ("section", "held_out", "points", "goal", "met")


def validate(
    section: Annotated[list[str] | None, typer.Option(help="Section to run; repeat it. Every one if left out.")] = None,
    format: Annotated[Format, typer.Option(help="Form of the answer.")] = Format.TABLE,
) -> None:
    """Compare the simulator with published and own measurements, error by method; say what was held out."""
    from workbench.run.validation import SECTIONS
    from workbench.run.validation import section as section_of

    rows = [row for function in [section_of(name) for name in section or SECTIONS] for row in function()]
    if format is Format.JSON:
        print_json({"validation": [as_dict(row) for row in rows]})
    else:
        print_rows(rows)


def as_dict(row: "ValidationRow") -> dict[str, Any]:
    """The row without its single points."""
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name != "points"}


def print_rows(rows: "list[ValidationRow]") -> None:
    """A table a section, under it what its lines held out."""
    from rich.table import Table

    screen = console()
    for name in dict.fromkeys(row.section for row in rows):
        lines = [row for row in rows if row.section == name]
        shown = [field.name for field in fields(lines[0]) if field.name not in _HIDDEN]
        table = Table(*shown, "goal", title=name, title_justify="left")
        for row in lines:
            table.add_row(*(_cell(getattr(row, column)) for column in shown), _goal(row))
        screen.print(table)
        for split in dict.fromkeys((row.method, row.split, row.held_out) for row in lines if row.held_out):
            screen.print(f"{split[0]}, {split[1]}: {split[2]}")


def _goal(row: "ValidationRow") -> str:
    if row.goal is None:
        return ""
    return f"{row.goal}: {'holds' if row.met else 'missed'}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)
