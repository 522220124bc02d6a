"""The outcome of a comparison in a terminal."""

from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.analysis.columns import varying_columns
from workbench.analysis.compare import COLUMNS
from workbench.report.conditions import ENGINE_WORDS, condition_groups
from workbench.report.terminal import NUMERIC, SHORT, plain_table
from workbench.report.units import MISSING, time_text

VERDICT_STYLE = {"faster": "green", "slower": "red", "same": "cyan", "unclear": "yellow"}


def print_verdicts(console: Console, comparison: pd.DataFrame) -> None:
    """Print the frame of compare_by or compare_runs, and how often each verdict fell."""
    if comparison.empty:
        console.print("nothing to compare: no cell has a partner")
        return
    for (engine, _, hardware), group in condition_groups(comparison):
        console.print(_table(group, f"{ENGINE_WORDS.get(engine, engine)}, {hardware}"))
    counts = comparison["verdict"].value_counts()
    console.print(", ".join(f"{counts[word]} {word}" for word in VERDICT_STYLE if word in counts))


def _table(comparison: pd.DataFrame, title: str) -> Table:
    names = [name for name in comparison.columns if name not in COLUMNS and name != "group"]
    context = varying_columns(comparison, among=names)
    baselines = comparison["baseline"].unique()
    if len(baselines) == 1:
        title += f", against {baselines[0]}"
    else:
        context.append("baseline")
    table = plain_table(title)
    for name in (*context, "candidate"):
        right = "right" if name in NUMERIC else "left"
        table.add_column(SHORT.get(name, name), justify=right, overflow="fold", min_width=4)
    for name in ("before", "time", "time ratio", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    if (comparison["verdict"] == "unclear").any():
        table.add_column("why", overflow="fold", min_width=16)
    for row in comparison.to_dict("records"):
        table.add_row(*_texts(row, (*context, "candidate"))[: len(table.columns)])
    return table


def ratio_text(row: dict) -> str:
    """``0.62x (0.61-0.64)``; candidate over baseline, below 1 is faster."""
    if pd.isna(row["ratio"]):
        return MISSING
    middle = f"{row['ratio']:.2f}x"
    if pd.isna(row["ratio_low"]) or row["judged_by"] == "value":
        return middle
    return f"{middle} ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})"


def _texts(row: dict, context: Sequence[str]) -> list[str | Text]:
    words = [MISSING if pd.isna(row[name]) else str(row[name]) for name in context]
    times = [time_text(row["baseline_us"]), time_text(row["candidate_us"]), ratio_text(row)]
    verdict = Text(row["verdict"], style=VERDICT_STYLE[row["verdict"]])
    return [*words, *times, verdict, row["why"] if row["verdict"] == "unclear" else ""]
