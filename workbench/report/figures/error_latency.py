"""Numerical error against latency: which precisions are worth their error."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.panels import Panel, Tables, empty_figure, panel_figure, panels
from workbench.report.theme import GREY, PRECISION_COLORS, color_of
from workbench.report.units import number_text, time_scale, time_text

HOW = "filled: no other precision of that setting is both faster and closer; a line joins one setting"
HEIGHT = 320


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Scatter of ``rel_error`` (log) over ``latency_us``; a faint line joins the precisions of one setting."""
    needs = ["latency_us", "rel_error"]
    drawn = panels(cells, needs=needs, without=("precision", "scale_rule"), how=HOW)
    if not drawn:
        return empty_figure(
            "No cell has both a latency and an error. Errors come from measured cells: run one with engine: measure"
        )
    figure = panel_figure([panel.title for panel in drawn], [HEIGHT] * len(drawn))
    shown: set[str] = set()
    for row, panel in enumerate(drawn, start=1):
        divisor, unit = time_scale(float(panel.cells["latency_us"].max()))
        _add_settings(figure, row, panel, divisor)
        _add_points(figure, row, panel, divisor, shown)
        figure.update_xaxes(title_text=f"latency of the layer ({unit})", rangemode="tozero", row=row, col=1)
        figure.update_yaxes(title_text="relative error against float32", type="log", dtick=1, row=row, col=1)
    return figure


def pareto_mask(latency: list[float], error: list[float]) -> list[bool]:
    """True for points that no other point beats in one of the two without losing in the other."""
    points = list(zip(latency, error, strict=True))
    return [not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points) for p in points]


def _add_settings(figure: go.Figure, row: int, panel: Panel, divisor: float) -> None:
    points = panel.cells[["latency_us", "rel_error"]].sort_values("rel_error", kind="stable")
    labels = pd.Series(panel.labels, index=panel.cells.index)
    for _, mine in points.groupby(labels.loc[points.index], sort=False):
        line = {"color": GREY, "width": 1}
        trace = go.Scatter(x=mine["latency_us"] / divisor, y=mine["rel_error"], mode="lines", line=line, opacity=0.5,
                           showlegend=False, hoverinfo="skip")  # fmt: skip
        figure.add_trace(trace, row=row, col=1)


def _add_points(figure: go.Figure, row: int, panel: Panel, divisor: float, shown: set[str]) -> None:
    cells = panel.cells.assign(label=panel.labels, best=False)
    for _, mine in cells.groupby("label", sort=False):
        cells.loc[mine.index, "best"] = pareto_mask(mine["latency_us"].tolist(), mine["rel_error"].tolist())
    for index, (precision, mine) in enumerate(cells.groupby("precision", sort=False)):
        color = color_of(str(precision), index, PRECISION_COLORS)
        hover = [
            f"{line['label']}<br>{precision}: {time_text(line['latency_us'])}, error {number_text(line['rel_error'])}"
            for line in mine.to_dict("records")
        ]
        trace = go.Scatter(
            x=mine["latency_us"] / divisor, y=mine["rel_error"], mode="markers", name=str(precision),
            legendgroup=str(precision), showlegend=precision not in shown, hovertext=hover, hoverinfo="text",
            marker={"color": color, "size": 11, "line": {"color": color, "width": 2},
                    "symbol": ["circle" if best else "circle-open" for best in mine["best"]]},
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)
        shown.add(str(precision))
