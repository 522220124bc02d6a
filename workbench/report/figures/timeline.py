"""The stages of one cell over time, a lane for each rank and stream."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.conditions import group_title
from workbench.report.figures.panels import ROW_PX, Tables, empty_figure, label_axis, panel_figure
from workbench.report.theme import STAGE_COLORS, color_of
from workbench.report.units import bytes_text, time_scale, time_text

MAX_LANES = 32
HOW = "drag over a part to zoom in, double click to see all"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Bars from ``start_us`` of ``duration_us`` for the first cell of ``cells`` that has stages."""
    stages = tables["stages"]
    usable = cells[(cells["status"] == "ok") & cells["cell_id"].isin(stages["cell_id"])].head(1)
    if usable.empty:
        return empty_figure("No stage times for this cell. Measured and simulated layers bring them: run a scenario")
    mine = stages[stages["cell_id"] == usable["cell_id"].iloc[0]].dropna(subset=["duration_us"])
    mine = mine.assign(start_us=mine["start_us"].fillna(0.0), lane=_lanes(mine))
    lanes = list(dict.fromkeys(mine.sort_values(["rank", "stream"])["lane"]))
    shown, left_out = lanes[:MAX_LANES], len(lanes) - MAX_LANES
    more = f"; the first {MAX_LANES} of {len(lanes)} lanes, the trace below has all" if left_out > 0 else ""
    title, note = group_title(usable)
    figure = panel_figure([f"<b>{title}</b><br>{HOW}{more}" + f"<br><i>{note}</i>" * bool(note)],
                          [max(len(shown), 2) * ROW_PX])  # fmt: skip
    divisor, unit = time_scale(float((mine["start_us"] + mine["duration_us"]).max()))
    for index, (stage, part) in enumerate(mine[mine["lane"].isin(shown)].groupby("stage", sort=False)):
        hover = [
            f"{row['lane']}<br>{stage}: {time_text(row['duration_us'])} from {time_text(row['start_us'])}, "
            f"{bytes_text(row['bytes'])}"
            for row in part.to_dict("records")
        ]
        bar = go.Bar(
            x=part["duration_us"] / divisor, base=part["start_us"] / divisor, y=part["lane"], orientation="h",
            name=str(stage), marker={"color": color_of(str(stage), index, STAGE_COLORS)}, hovertext=hover,
            hoverinfo="text",
        )  # fmt: skip
        figure.add_trace(bar, row=1, col=1)
    label_axis(figure, 1, shown)
    figure.update_xaxes(title_text=f"time ({unit})", row=1, col=1)
    figure.update_layout(barmode="overlay", dragmode="zoom")
    return figure


def _lanes(stages: pd.DataFrame) -> list[str]:
    pairs = zip(stages["rank"], stages["stream"].fillna("main"), strict=True)
    return [f"{'all ranks' if pd.isna(rank) else f'rank {rank}'}, {stream}" for rank, stream in pairs]
