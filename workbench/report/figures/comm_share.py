"""How much of a layer is communication, by strategy and number of GPUs."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.dots import Dot, add_dots
from workbench.report.figures.panels import Panel, Tables, empty_figure, label_axis, panel_figure, panels, rows_height
from workbench.report.theme import STRATEGY_COLORS, color_of
from workbench.report.units import percent_text, time_text

HOW = "share of dispatch and combine in the latency"
JOINED = "; a line joins one setting over the GPU counts"
HEIGHT = 300
UNTOLD = ("num_gpus", "nodes", "gpus_per_node", "ep", "dp", "strategy")


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """``comm_fraction`` as lines over ``num_gpus``, or a row a setting where there is one count; colour: strategy."""
    drawn = panels(cells, needs=["comm_fraction", "num_gpus"], without=UNTOLD, how=HOW)
    if not drawn:
        return empty_figure("No cell says how much of it is communication. Run one with more than one GPU")
    over_gpus = [panel.cells["num_gpus"].nunique() > 1 for panel in drawn]
    figure = panel_figure(
        [panel.title.replace(HOW, HOW + JOINED * many) for panel, many in zip(drawn, over_gpus, strict=True)],
        [HEIGHT if many else rows_height(panel) for panel, many in zip(drawn, over_gpus, strict=True)],
    )
    shown: set[str] = set()
    for row, (panel, many) in enumerate(zip(drawn, over_gpus, strict=True), start=1):
        if not many:
            add_dots(figure, row, _dots(panel), colors=STRATEGY_COLORS, shown=shown)
            label_axis(figure, row, panel.row_names)
            figure.update_xaxes(title_text="communication", tickformat=".0%", range=[0, 1], row=row, col=1)
            continue
        _add_lines(figure, row, panel, shown)
        counts = sorted({str(number) for number in panel.cells["num_gpus"]}, key=int)
        where = "ranks" if (panel.cells["device"] == "cpu").all() else "GPUs"
        figure.update_xaxes(title_text=where, type="category", categoryorder="array", categoryarray=counts,
                            row=row, col=1)  # fmt: skip
        figure.update_yaxes(title_text="communication", tickformat=".0%", range=[0, 1], row=row, col=1)
    return figure


def _dots(panel: Panel) -> list[Dot]:
    return [
        Dot(label, str(cell["strategy"]), cell["comm_fraction"], None, None, _hover(label, cell))
        for label, cell in zip(panel.labels, panel.cells.to_dict("records"), strict=True)
    ]


def _hover(label: str, cell: dict) -> str:
    share, whole = percent_text(cell["comm_fraction"]), time_text(cell["latency_us"])
    return f"{label}<br>{cell['strategy']}, {cell['num_gpus']} ranks: {share} of {whole}"


def _add_lines(figure: go.Figure, row: int, panel: Panel, shown: set[str]) -> None:
    cells = panel.cells.assign(label=panel.labels)
    strategies = list(dict.fromkeys(cells["strategy"].fillna("none")))
    for (strategy, label), mine in cells.groupby(["strategy", "label"], sort=False, dropna=False):
        name = str(strategy)
        color = color_of(name, strategies.index(name) if name in strategies else 0, STRATEGY_COLORS)
        line = mine.sort_values("num_gpus")
        hover = [_hover(str(label), cell) for cell in line.to_dict("records")]
        trace = go.Scatter(
            x=line["num_gpus"].astype(str), y=line["comm_fraction"], mode="lines+markers", name=name,
            legendgroup=name, showlegend=name not in shown, line={"color": color, "width": 1.5},
            marker={"color": color, "size": 9}, hovertext=hover, hoverinfo="text",
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)
        shown.add(name)
