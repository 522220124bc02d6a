"""The bare exchange over message sizes: how long each strategy takes, and what bandwidth it reaches."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.panels import Panel, Tables, empty_figure, panel_figure, panels
from workbench.report.theme import STRATEGY_COLORS, color_of
from workbench.report.units import number_text, time_scale, time_text
from workbench.spec.base import size_text

TOLD = ("bytes_per_rank", "strategy")
HOW = "over the send buffer of a rank; a line joins one setting over the sizes"
BANDWIDTH = "bus bandwidth as nccl-tests defines it, of the rank with most to send or receive"
HEIGHT = 260
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """``latency_us`` and ``busbw_gb_per_s`` over ``bytes_per_rank`` of the all_to_all cells; colour: strategy, dash:
    what else differs. A pair of plots for each engine and device."""
    bare = cells[cells["scope"] == "all_to_all"]
    drawn = panels(bare, needs=["latency_us", "bytes_per_rank"], without=TOLD, how=HOW)
    if not drawn:
        return empty_figure(
            "No bare exchange in here. They come from a suite of their own: moe-workbench run all-to-all"
        )
    heads = [head for panel in drawn for head in (panel.title, BANDWIDTH)]
    figure = panel_figure(heads, [HEIGHT] * len(heads))
    shown: set[str] = set()
    for number, panel in enumerate(drawn):
        row = 2 * number + 1
        divisor, unit = time_scale(float(panel.cells["latency_us"].median()))
        _add_lines(figure, row, panel, panel.cells["latency_us"] / divisor, shown)
        figure.update_yaxes(title_text=f"latency ({unit})", type="log", row=row, col=1)
        _add_lines(figure, row + 1, panel, panel.cells["busbw_gb_per_s"], shown)
        figure.update_yaxes(title_text="GB/s", rangemode="tozero", row=row + 1, col=1)
        _size_axis(figure, (row, row + 1), panel)
    return figure


def _size_axis(figure: go.Figure, rows: tuple[int, int], panel: Panel) -> None:
    sizes = sorted({int(size) for size in panel.cells["bytes_per_rank"]})
    for row in rows:
        figure.update_xaxes(
            type="log", tickvals=sizes, ticktext=[size_text(size) for size in sizes], title_text="bytes a rank",
            row=row, col=1,
        )  # fmt: skip


def _add_lines(figure: go.Figure, row: int, panel: Panel, values: pd.Series, shown: set[str]) -> None:
    cells = panel.cells.assign(label=panel.labels, value=values).dropna(subset=["value"])
    strategies = list(dict.fromkeys(panel.cells["strategy"]))
    for (strategy, label), mine in cells.groupby(["strategy", "label"], sort=False, dropna=False):
        name, line = str(strategy), mine.sort_values("bytes_per_rank")
        color = color_of(name, strategies.index(strategy), STRATEGY_COLORS)
        dash = DASHES[panel.row_names.index(str(label)) % len(DASHES)]
        trace = go.Scatter(
            x=line["bytes_per_rank"].astype(int), y=line["value"], mode="lines+markers", name=name, legendgroup=name,
            showlegend=name not in shown, line={"color": color, "width": 1.5, "dash": dash},
            marker={"color": color, "size": 7}, hoverinfo="text",
            hovertext=[_hover(name, str(label), cell) for cell in line.to_dict("records")],
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)
        shown.add(name)


def _hover(strategy: str, label: str, cell: dict) -> str:
    lines = [f"{strategy}, {size_text(int(cell['bytes_per_rank']))} a rank: {time_text(cell['latency_us'])}"]
    if not pd.isna(cell["latency_p99_us"]):
        lines[0] += f" (p99 {time_text(cell['latency_p99_us'])})"
    if not pd.isna(cell["busbw_gb_per_s"]):
        lines.append(f"bus bandwidth {number_text(cell['busbw_gb_per_s'])} GB/s")
    legs = {"inside nodes": cell["scale_up_us"], "across them": cell["scale_out_us"]}
    lines += [f"hops {where} {time_text(us)}" for where, us in legs.items() if not pd.isna(us)]
    return "<br>".join([*([label] if label != "all_to_all" else []), *lines])
