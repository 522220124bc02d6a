"""Load of every expert and rank of one cell, by layer or by step."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.conditions import group_title
from workbench.report.figures.panels import Tables, empty_figure, panel_figure
from workbench.report.units import number_text

HEIGHT = 200
ROW_PX = 12
COLORS = "Cividis"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Tokens over their mean in each layer (each step where there is one layer) of the first cell that has loads."""
    loads = tables["loads"].dropna(subset=["tokens"])
    usable = cells[(cells["status"] == "ok") & cells["cell_id"].isin(loads["cell_id"])].head(1)
    if usable.empty:
        return empty_figure("No cell recorded its loads. Run a scenario with a router and several ranks")
    mine = loads[loads["cell_id"] == usable["cell_id"].iloc[0]]
    by = "layer" if mine["layer"].nunique() > 1 or mine["step"].nunique() < 2 else "step"
    kinds = [kind for kind in ("expert", "rank") if (mine["kind"] == kind).any()]
    title, _ = group_title(usable)
    heads = [f"<b>tokens of each {kind} over the mean of its {by}</b><br>{title}" for kind in kinds]
    wides = [_wide(mine[mine["kind"] == kind], by) for kind in kinds]
    figure = panel_figure(heads, [max(HEIGHT, ROW_PX * len(wide)) for wide in wides])
    most = max(float(wide.to_numpy().max()) for wide in wides)
    for row, (kind, wide) in enumerate(zip(kinds, wides, strict=True), start=1):
        trace = go.Heatmap(
            z=wide.to_numpy(), x=[int(index) for index in wide.columns], y=[str(index) for index in wide.index],
            coloraxis="coloraxis",
            hovertemplate=f"{by} %{{y}}, {kind} %{{x}}: %{{z:.2f}} of the mean<extra></extra>",
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)
        figure.update_xaxes(title_text=kind, row=row, col=1)
        figure.update_yaxes(title_text=by, type="category", row=row, col=1)
    bar = {"title": "load / mean", "tickvals": [0, 1, most], "ticktext": ["0", "1", number_text(most)]}
    figure.update_layout(coloraxis={"colorscale": COLORS, "cmin": 0, "cmax": most, "colorbar": bar})
    return figure


def _wide(loads: pd.DataFrame, by: str) -> pd.DataFrame:
    """A row each layer or step, a column each index, tokens over the row's mean."""
    wide = loads.assign(tokens=loads["tokens"].astype(float))
    wide = wide.pivot_table(index=by, columns="index", values="tokens", aggfunc="sum", fill_value=0.0)
    return wide.div(wide.mean(axis=1).where(lambda mean: mean > 0, 1.0), axis=0)
