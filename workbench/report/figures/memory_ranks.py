"""Memory of every rank of one cell, against what its device has."""

import pandas as pd
import plotly.graph_objects as go

from workbench.analysis.columns import planned_cells, value_at
from workbench.report.conditions import group_title
from workbench.report.figures.memory import COLORS
from workbench.report.figures.panels import ROW_PX, Tables, empty_figure, label_axis, panel_figure
from workbench.report.theme import VERMILLION, color_of
from workbench.report.units import byte_scale, bytes_text

MAX_RANKS = 64


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Stacked ``bytes`` by what they hold for each rank of the first cell that has them; a line marks the capacity."""
    memory = tables["memory"].dropna(subset=["bytes"])
    usable = cells[(cells["status"] == "ok") & cells["cell_id"].isin(memory["cell_id"])].head(1)
    if usable.empty:
        return empty_figure("No cell recorded its memory. Simulated layers bring it: run one with engine: simulate")
    mine = memory[memory["cell_id"] == usable["cell_id"].iloc[0]]
    mine = mine.assign(lane=["all ranks" if pd.isna(rank) else f"rank {rank}" for rank in mine["rank"]])
    lanes = list(dict.fromkeys(mine.sort_values("rank")["lane"]))
    more = f"; the first {MAX_RANKS} of {len(lanes)} ranks" if len(lanes) > MAX_RANKS else ""
    lanes = lanes[:MAX_RANKS]
    capacity = capacities(usable)[0]
    told = f"dotted: the device's {bytes_text(capacity)}" if capacity else "the device's memory is not known"
    figure = panel_figure([f"<b>{group_title(usable)[0]}</b><br>{told}{more}"], [max(len(lanes), 2) * ROW_PX])
    wide = mine.pivot_table(index="lane", columns="what", values="bytes", aggfunc="sum").reindex(lanes)
    wide = wide.astype(float).fillna(0.0)
    divisor, unit = byte_scale(max(float(wide.sum(axis=1).max()), capacity or 0.0))
    for index, what in enumerate(wide):
        bar = go.Bar(
            x=wide[what] / divisor, y=wide.index, orientation="h", name=str(what),
            marker={"color": color_of(str(what), index, COLORS)},
            hovertemplate=f"%{{y}}<br>{what} %{{x:.3g}} {unit}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(bar, row=1, col=1)
    if capacity:
        figure.add_vline(x=capacity / divisor, line={"color": VERMILLION, "dash": "dot"}, row=1, col=1)
    label_axis(figure, 1, lanes)
    figure.update_xaxes(title_text=f"memory ({unit})", row=1, col=1)
    figure.update_layout(barmode="stack")
    return figure


def capacities(cells: pd.DataFrame) -> list[float | None]:
    """Bytes of memory of each cell's device, None where the planned cell does not tell."""
    known = [value_at(cell, "cluster.memory_bytes") for cell in planned_cells(cells)]
    return [float(number) if number else None for number in known]
