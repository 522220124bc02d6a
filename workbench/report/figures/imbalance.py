"""How uneven the ranks were from step to step."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.loads import IRRELEVANT
from workbench.report.figures.panels import Tables, empty_figure, panel_figure
from workbench.report.labels import cell_labels
from workbench.report.theme import CYCLE, GREY

HEIGHT = 260
MAX_LINES = 20
HEAD = "<b>tokens of the hottest {} over the mean</b><br>mean over layers; routing alone: the same on every device"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Hottest over mean by step, a line a setting; equal traffic is drawn once."""
    peaks = step_peaks(tables["loads"])
    usable = cells[(cells["status"] == "ok") & cells["cell_id"].isin(peaks["cell_id"])]
    if usable.empty:
        return empty_figure("No cell has more than one step. Set workload.steps and run it to follow the imbalance")
    labels = dict(zip(usable["cell_id"], cell_labels(usable, without=IRRELEVANT), strict=True))
    mine = peaks[peaks["cell_id"].isin(labels)].assign(label=lambda frame: frame["cell_id"].map(labels))
    kinds = [kind for kind in ("expert", "rank") if (mine["kind"] == kind).any()]
    figure = panel_figure([HEAD.format(kind) for kind in kinds], [HEIGHT] * len(kinds))
    names = list(dict.fromkeys(mine["label"]))[:MAX_LINES]
    for row, kind in enumerate(kinds, start=1):
        for index, name in enumerate(names):
            line = mine[(mine["label"] == name) & (mine["kind"] == kind)].drop_duplicates("step").sort_values("step")
            trace = go.Scatter(
                x=line["step"].astype(int), y=line["peak"], mode="lines+markers", name=name, legendgroup=name,
                showlegend=row == 1, line={"color": CYCLE[index % len(CYCLE)], "width": 1.5},
                hovertemplate=f"{name}<br>step %{{x}}: %{{y:.2f}} of the mean<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, row=row, col=1)
        figure.add_hline(y=1.0, line={"color": GREY, "dash": "dot"}, row=row, col=1)
        figure.update_xaxes(title_text="step", row=row, col=1)
        figure.update_yaxes(title_text="hottest / mean", row=row, col=1)
    return figure


def step_peaks(loads: pd.DataFrame) -> pd.DataFrame:
    """``peak``, hottest over mean averaged over layers, by cell, kind and step, of the cells with several steps."""
    known = loads.dropna(subset=["tokens"]).assign(tokens=lambda frame: frame["tokens"].astype(float))
    steps = known.groupby("cell_id")["step"].nunique()
    known = known[known["cell_id"].isin(steps[steps > 1].index)]
    sizes = known.groupby(["cell_id", "kind", "step", "layer"], sort=False)["tokens"].agg(["max", "mean"])
    peaks = (sizes["max"] / sizes["mean"].where(sizes["mean"] > 0)).rename("peak")
    return peaks.groupby(["cell_id", "kind", "step"], sort=False).mean().dropna().reset_index()
