"""Verdicts as dots: how much faster a candidate is than its baseline, and how sure that is."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.analysis.columns import planned_cells
from workbench.analysis.compare import COLUMNS, compare_by
from workbench.report.conditions import ENGINE_WORDS, condition_groups, is_measured_cpu
from workbench.report.figures.dots import Dot, add_dots
from workbench.report.figures.panels import MAX_ROWS, ROW_PX, Tables, empty_figure, label_axis, panel_figure
from workbench.report.labels import row_labels
from workbench.report.theme import GREY, VERDICT_SYMBOLS
from workbench.report.units import time_text

HOW = "right of 1 is faster than {}; triangle: a verdict, dot: same, open circle: unclear; bar: 95% bootstrap interval"
BALANCERS = {"balance.placement": "placement", "balance.training": "training balance", "balance.capacity": "capacity",
             "router": "router"}  # fmt: skip
CPU_CAUTION = "Times of this processor, where the same code differs by up to 1.75x from day to day."


def build_balancers(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """What each router, placement, training balance and capacity gives back over its baseline, all else alike."""
    if cells.empty or not all(planned_cells(cells)):
        return empty_figure("Nothing to hold against one another: run a scenario first")
    frames = []
    for path, name in BALANCERS.items():
        if len({str(_at(cell, path)) for cell in planned_cells(cells)}) > 1:
            pairs = compare_by(cells, tables["samples"], by=path).dropna(subset=["ratio"])
            frames.append(pairs.assign(choice=name))
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return empty_figure(
            "Nothing to hold against one another: run a scenario whose matrix has several routers or placements"
        )
    return verdict_figure(pd.concat(frames, ignore_index=True))


def build_comparison(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """The verdicts of ``tables["comparison"]``, a frame of compare_runs."""
    pairs = tables.get("comparison", pd.DataFrame())
    if pairs.empty or pairs["ratio"].isna().all():
        return empty_figure("These runs have no cell in common. Choose two that run one suite")
    return verdict_figure(pairs.dropna(subset=["ratio"]))


def verdict_figure(pairs: pd.DataFrame) -> go.Figure:
    """A panel for each engine and device, a row for each setting, a colour for each candidate."""
    groups = [group for _, group in condition_groups(pairs)]
    named = [_named(group) for group in groups]
    heads = [_head(group, len(rows)) for group, (rows, _) in zip(groups, named, strict=True)]
    figure = panel_figure(heads, [max(2, min(len(rows), MAX_ROWS)) * ROW_PX for rows, _ in named])
    shown: set[str] = set()
    for row, (group, (names, labels)) in enumerate(zip(groups, named, strict=True), start=1):
        kept = names[:MAX_ROWS]
        pairs_of = zip(labels, group.to_dict("records"), strict=True)
        add_dots(figure, row, [_dot(label, pair) for label, pair in pairs_of if label in kept], colors={}, shown=shown)
        label_axis(figure, row, kept)
        figure.update_xaxes(title_text="speed-up", row=row, col=1)
        figure.add_vline(x=1.0, line={"color": GREY, "dash": "dot"}, row=row, col=1)
    return figure


def _named(group: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Distinct row names in order, and the name of each pair."""
    told = group[[name for name in group if name not in COLUMNS]]
    several = [name for name in told if told[name].astype(str).nunique() > 1]
    labels: Sequence[str] = row_labels(told[several]) if several else [""] * len(group)
    labels = [label or str(pair) for label, pair in zip(labels, group["candidate_cell"], strict=True)]
    return list(dict.fromkeys(labels)), list(labels)


def _head(group: pd.DataFrame, rows: int) -> str:
    first = group.iloc[0]
    baselines = ", ".join(dict.fromkeys(group["baseline"].astype(str)))
    how = HOW.format(baselines) + (f"; the first {MAX_ROWS} of {rows} settings" if rows > MAX_ROWS else "")
    caution = f"<br><i>{CPU_CAUTION}</i>" if is_measured_cpu(group) else ""
    return f"<b>{ENGINE_WORDS.get(first['engine'], first['engine'])}, {first['hardware']}</b><br>{how}{caution}"


def _dot(label: str, pair: Mapping) -> Dot:
    low, high = (None if pd.isna(pair[end]) else 1 / pair[end] for end in ("ratio_high", "ratio_low"))
    hover = (
        f"{label}<br>{pair['candidate']} over {pair['baseline']}: {1 / pair['ratio']:.2f}x, {pair['verdict']}<br>"
        f"{time_text(pair['baseline_us'])} before, {time_text(pair['candidate_us'])} now<br>{pair['why']}"
    )
    return Dot(label, str(pair["candidate"]), 1 / pair["ratio"], low, high, hover, VERDICT_SYMBOLS[pair["verdict"]])


def _at(cell: Mapping, path: str) -> object:
    value: object = cell
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
