"""The outcome of a comparison in a terminal."""

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.analysis.columns import varying_columns
from workbench.analysis.compare import COLUMNS
from workbench.analysis.verdict import MIN_EFFECT
from workbench.report.conditions import ENGINE_WORDS, condition_groups
from workbench.report.labels import row_labels
from workbench.report.notes import Notes, number
from workbench.report.terminal import BEST, BEST_STYLE, PADDING, add_settings, plain_table, print_notes, setting_columns
from workbench.report.units import MISSING, time_text

BEST_NOTE = "* the fastest of those held against the same baseline"
HEADS = ("before", "time", "time ratio", "verdict")
VERDICT_STYLE = {"faster": "green", "slower": "red", "same": "cyan", "unclear": "yellow"}


def print_verdicts(console: Console, comparison: pd.DataFrame) -> None:
    """Print the frame of compare_by or compare_runs, and how often each verdict fell."""
    if comparison.empty:
        console.print("nothing to compare: no cell has a partner")
        return
    for (engine, _, hardware), group in condition_groups(comparison):
        notes = number([[row["why"]] if row["verdict"] == "unclear" else [] for row in group.to_dict("records")])
        console.print(_table(group, f"{ENGINE_WORDS.get(engine, engine)}, {hardware}", notes, width=console.width))
        print_notes(console, notes)
    counts = comparison["verdict"].value_counts()
    console.print(", ".join(f"{counts[word]} {word}" for word in VERDICT_STYLE if word in counts))
    if best_candidates(comparison).any():
        console.print(BEST_NOTE)


def best_candidates(comparison: pd.DataFrame) -> pd.Series:
    """True for each candidate that is faster than its baseline and ahead of every other one held against it."""
    best = pd.Series(False, index=comparison.index)
    for _, group in comparison.dropna(subset=["baseline_cell"]).groupby("baseline_cell", sort=False):
        if len(group) < 2 or group["ratio"].isna().all():
            continue
        first = group["ratio"].idxmin()
        high = group["ratio_high"].fillna(group["ratio"])[first] * (1 + MIN_EFFECT)
        others = group["ratio_low"].fillna(group["ratio"]).drop(index=first)
        best.loc[first] = group["verdict"][first] == "faster" and bool((others > high).all())
    return best


def _table(comparison: pd.DataFrame, title: str, notes: Notes, *, width: int) -> Table:
    names = [name for name in comparison.columns if name not in COLUMNS and name != "group"]
    context = varying_columns(comparison, among=names)
    baselines = comparison["baseline"].unique()
    if len(baselines) == 1:
        title += f", against {baselines[0]}"
    else:
        context.append("baseline")
    told = comparison[[*context, "candidate"]]
    rows = zip(comparison.to_dict("records"), notes.marks, best_candidates(comparison), strict=True)
    figures = [_figures(*row) for row in rows]
    room = width - sum(max(len(str(text)) for text in column) + PADDING for column in zip(HEADS, *figures, strict=True))
    words = setting_columns(told, labels=row_labels(told), width=room)
    table = plain_table(title)
    add_settings(table, words, width=room)
    for name in HEADS:
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for *texts, row in zip(*words.values(), figures, strict=True):
        table.add_row(*texts, *row)
    return table


def ratio_text(row: dict) -> str:
    """``0.62x (0.61-0.64)``; candidate over baseline, below 1 is faster."""
    if pd.isna(row["ratio"]):
        return MISSING
    middle = f"{row['ratio']:.2f}x"
    if pd.isna(row["ratio_low"]) or row["judged_by"] == "value":
        return middle
    return f"{middle} ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})"


def _figures(row: dict, mark: str, is_best: bool) -> list[str | Text]:
    times = [time_text(row["baseline_us"]), time_text(row["candidate_us"]), ratio_text(row)]
    word = f"{row['verdict']}{BEST if is_best else ''} {mark}".rstrip()
    return [*times, Text(word, style=BEST_STYLE if is_best else VERDICT_STYLE[row["verdict"]])]
