"""The bare exchange over message sizes: how long each strategy takes, and what bandwidth it reaches."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.panels import Panel, Tables, empty_figure, panel_figure, panels
from workbench.report.theme import STRATEGY_COLORS, color_of
from workbench.report.units import number_text, time_scale, time_text
from workbench.spec.base import size_text

TOLD = ("bytes_per_rank", "strategy")
BANDWIDTH = "bus bandwidth as nccl-tests defines it, of the rank with most to send or receive"
HEIGHT = 240
MAX_SETTINGS = 12


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """``latency_us`` and ``busbw_gb_per_s`` over ``bytes_per_rank`` of the all_to_all cells, a line a strategy.

    A pair of plots for each setting, those of one engine and device below one another.
    """
    bare = cells[cells["scope"] == "all_to_all"]
    drawn = panels(bare, needs=["latency_us", "bytes_per_rank"], without=TOLD)
    settings = [setting for panel in drawn for setting in _settings(panel)]
    if not settings:
        return empty_figure(
            "No bare exchange in here. They come from a suite of their own: moe-workbench run all-to-all"
        )
    left_out = len(settings) - MAX_SETTINGS
    settings = settings[:MAX_SETTINGS]
    heads = [head for panel in settings for head in (panel.title, BANDWIDTH)]
    if left_out > 0:
        heads[0] += f"<br>the first {MAX_SETTINGS} of {MAX_SETTINGS + left_out} settings, filter to see the others"
    figure = panel_figure(heads, [HEIGHT] * len(heads))
    shown: set[str] = set()
    for number, panel in enumerate(settings):
        row = 2 * number + 1
        divisor, unit = time_scale(float(panel.cells["latency_us"].median()))
        _add_lines(figure, row, panel, panel.cells["latency_us"] / divisor, shown)
        figure.update_yaxes(title_text=f"latency ({unit})", type="log", dtick=1, row=row, col=1)
        _add_lines(figure, row + 1, panel, panel.cells["busbw_gb_per_s"], shown)
        figure.update_yaxes(title_text="GB/s", rangemode="tozero", row=row + 1, col=1)
        _size_axis(figure, (row, row + 1), panel)
    return figure


def _settings(panel: Panel) -> list[Panel]:
    """A panel for each label of ``panel``, those with most strategies first: it is they that are to be compared."""
    parts = []
    for label in panel.row_names:
        mine = [name == label for name in panel.labels]
        said = [] if label == "all_to_all" else [label]
        head, *note = panel.title.split("<br>")
        parts.append(Panel("<br>".join([head, *said, *note]), panel.cells[mine], (label,) * sum(mine)))
    return sorted(parts, key=lambda part: -part.cells["strategy"].nunique())


def _size_axis(figure: go.Figure, rows: tuple[int, int], panel: Panel) -> None:
    sizes = sorted({int(size) for size in panel.cells["bytes_per_rank"]})
    for row in rows:
        figure.update_xaxes(
            type="log", tickvals=sizes, ticktext=[size_text(size) for size in sizes], title_text="buffer of a rank",
            row=row, col=1,
        )  # fmt: skip


def _add_lines(figure: go.Figure, row: int, panel: Panel, values: pd.Series, shown: set[str]) -> None:
    cells = panel.cells.assign(value=values).dropna(subset=["value"])
    for index, (strategy, mine) in enumerate(cells.groupby("strategy", sort=False, dropna=False)):
        name, line = str(strategy), mine.sort_values("bytes_per_rank")
        color = color_of(name, index, STRATEGY_COLORS)
        trace = go.Scatter(
            x=line["bytes_per_rank"].astype(int), y=line["value"], mode="lines+markers", name=name, legendgroup=name,
            showlegend=name not in shown, line={"color": color, "width": 1.5}, marker={"color": color, "size": 7},
            hovertext=[_hover(name, cell) for cell in line.to_dict("records")], hoverinfo="text",
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)
        shown.add(name)


def _hover(strategy: str, cell: dict) -> str:
    lines = [f"{strategy}, {size_text(int(cell['bytes_per_rank']))} a rank: {time_text(cell['latency_us'])}"]
    if not pd.isna(cell["latency_p99_us"]):
        lines[0] += f" (p99 {time_text(cell['latency_p99_us'])})"
    if not pd.isna(cell["busbw_gb_per_s"]):
        lines.append(f"bus bandwidth {number_text(cell['busbw_gb_per_s'])} GB/s")
    legs = {"inside nodes": cell["scale_up_us"], "across them": cell["scale_out_us"]}
    lines += [f"hops {where} {time_text(us)}" for where, us in legs.items() if not pd.isna(us)]
    return "<br>".join(lines)
