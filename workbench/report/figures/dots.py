"""Rows of dots with their intervals: one row a setting, one colour a value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from workbench.report.theme import color_of


@dataclass(frozen=True)
class Dot:
    """A point of a row; ``low`` and ``high`` are its interval, in the axis' unit."""

    row: str
    series: str
    x: float
    low: float | None
    high: float | None
    hover: str
    symbol: str = "circle"


def add_dots(figure: go.Figure, row: int, dots: Sequence[Dot], *, colors: Mapping[str, str], shown: set[str]) -> None:
    """Draw the dots of a panel; ``shown`` collects which series the legend has already."""
    series = list(dict.fromkeys(dot.series for dot in dots))
    for index, name in enumerate(series):
        mine = [dot for dot in dots if dot.series == name]
        color = color_of(name, index, dict(colors))
        if name not in shown:
            figure.add_trace(_legend_entry(name, color, row_name=mine[0].row), row=row, col=1)
            shown.add(name)
        trace = go.Scatter(
            x=[dot.x for dot in mine], y=[dot.row for dot in mine], name=name, legendgroup=name, showlegend=False,
            mode="markers", error_x=_error_bars(mine, color), hovertext=[dot.hover for dot in mine], hoverinfo="text",
            marker={"color": color, "size": 11, "symbol": [dot.symbol for dot in mine],
                    "line": {"color": color, "width": 2}},
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)


def _legend_entry(name: str, color: str, *, row_name: str) -> go.Scatter:
    """A plain dot, for the first point's own symbol would stand in the legend."""
    marker = {"color": color, "size": 11, "symbol": "circle"}
    return go.Scatter(x=[None], y=[row_name], name=name, legendgroup=name, mode="markers", marker=marker)


def _error_bars(dots: Sequence[Dot], color: str) -> dict:
    plus = [0.0 if dot.high is None else max(dot.high - dot.x, 0.0) for dot in dots]
    minus = [0.0 if dot.low is None else max(dot.x - dot.low, 0.0) for dot in dots]
    shape = {"type": "data", "symmetric": False, "color": color, "thickness": 1.5, "width": 3}
    return shape | {"array": plus, "arrayminus": minus, "visible": any(plus) or any(minus)}
