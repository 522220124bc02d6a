"""Latency of every setting by precision, with its interval."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.dots import Dot, add_dots
from workbench.report.figures.panels import Panel, Tables, empty_figure, label_axis, panel_figure, panels, rows_height
from workbench.report.theme import PRECISION_COLORS
from workbench.report.units import time_scale, time_text

HOW = "dot: median; bar: 95% interval of the median, or the error band"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Dots of ``latency_us``; intervals from the samples' confidence or the simulator's band."""
    drawn = panels(cells, needs=["latency_us"], without=("precision", "scale_rule"), how=HOW)
    if not drawn:
        return empty_figure("No finished cell has a latency yet. Run a scenario: moe-workbench run quickstart")
    figure = panel_figure([panel.title for panel in drawn], [rows_height(panel) for panel in drawn])
    shown: set[str] = set()
    for row, panel in enumerate(drawn, start=1):
        divisor, unit = time_scale(float(panel.cells["latency_us"].max()))
        add_dots(figure, row, _dots(panel, divisor), colors=PRECISION_COLORS, shown=shown)
        label_axis(figure, row, panel.row_names)
        figure.update_xaxes(title_text=f"latency of the layer ({unit})", rangemode="tozero", row=row, col=1)
    return figure


def _dots(panel: Panel, divisor: float) -> list[Dot]:
    dots = []
    for label, row in zip(panel.labels, panel.cells.to_dict("records"), strict=True):
        low = _first(row["latency_ci_low_us"], row["band_low_us"])
        high = _first(row["latency_ci_high_us"], row["band_high_us"])
        words = [label, f"{row['precision']}: {time_text(row['latency_us'])}"]
        words += [f"{time_text(low)} to {time_text(high)}"] if low is not None and high is not None else []
        words += [f"multiplied {row['math_path']}"] if isinstance(row["math_path"], str) else []
        ends = (None if low is None else low / divisor, None if high is None else high / divisor)
        dots.append(Dot(label, str(row["precision"]), row["latency_us"] / divisor, *ends, "<br>".join(words)))
    return dots


def _first(*values: float) -> float | None:
    return next((float(value) for value in values if not pd.isna(value)), None)
