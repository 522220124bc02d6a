"""Predictions over the measurements that they were not made from, section by section."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.panels import Tables, empty_figure, panel_figure
from workbench.report.theme import CYCLE, GREY
from workbench.report.units import number_text, time_text

HEIGHT = 280
MAX_POINTS = 1500
HOW = "above 1: predicted too slow; every point was held out from what its prediction was made from"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """``predicted_us`` over ``measured_us`` of the table ``validation``, a panel a section, a colour a method."""
    points = tables.get("validation", pd.DataFrame())
    if points.empty:
        return empty_figure("No validation table here. Make one: moe-workbench validate")
    points = points.assign(ratio=points["predicted_us"] / points["measured_us"])
    sections = list(points.groupby("section", sort=False))
    figure = panel_figure([_head(str(name), part) for name, part in sections], [HEIGHT] * len(sections))
    methods = list(dict.fromkeys(points["method"].astype(str)))
    shown: set[str] = set()
    for row, (_, part) in enumerate(sections, start=1):
        for method, mine in _thinned(part).groupby("method", sort=False, dropna=False):
            name = str(method)
            trace = go.Scattergl(
                x=mine["measured_us"], y=mine["ratio"], mode="markers", name=name, legendgroup=name,
                showlegend=name not in shown, hoverinfo="text", hovertext=[_hover(point) for point in
                                                                           mine.to_dict("records")],
                marker={"color": CYCLE[methods.index(name) % len(CYCLE)], "size": 5, "opacity": 0.7},
            )  # fmt: skip
            figure.add_trace(trace, row=row, col=1)
            shown.add(name)
        figure.add_hline(y=1.0, line={"color": GREY, "dash": "dot"}, row=row, col=1)
        figure.update_xaxes(type="log", title_text="measured (us)", dtick=1, row=row, col=1)
        figure.update_yaxes(type="log", title_text="predicted / measured", row=row, col=1)
    return figure


def _head(section: str, part: pd.DataFrame) -> str:
    hardware = ", ".join(sorted(part["hardware"].dropna().astype(str).unique()))
    thin = f"; every {_stride(part)}th of {len(part)} is drawn" if _stride(part) > 1 else ""
    return f"<b>{section}: {len(part)} held-out measurements on {hardware}</b><br>{HOW}{thin}"


def _stride(part: pd.DataFrame) -> int:
    return -(-len(part) // MAX_POINTS)


def _thinned(part: pd.DataFrame) -> pd.DataFrame:
    return part.iloc[:: _stride(part)]


def _hover(point: dict) -> str:
    what = ", ".join(str(point[name]) for name in ("hardware", "kernel", "dtype", "split") if not pd.isna(point[name]))
    band = ""
    if not pd.isna(point["band_low_us"]):
        band = f" ({time_text(point['band_low_us'])} to {time_text(point['band_high_us'])})"
    return (
        f"{what}<br>measured {time_text(point['measured_us'])}, predicted {time_text(point['predicted_us'])}{band}"
        f"<br>ratio {number_text(point['ratio'])}"
    )
