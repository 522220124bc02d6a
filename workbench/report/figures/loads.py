"""How evenly tokens fall on experts and on ranks."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.panels import MAX_ROWS, Tables, empty_figure, panel_figure
from workbench.report.labels import cell_labels
from workbench.report.theme import CYCLE, GREY

HEIGHT = 260
IRRELEVANT = ("engine", "hardware", "device", "precision", "scale_rule", "strategy", "dispatch_dtype", "combine_dtype",
              "overlap", "overlap_degree", "kernel", "method")  # fmt: skip
HEADS = {
    "expert": "<b>tokens per expert over their mean, hottest first</b><br>routing alone: the same on every device",
    "rank": "<b>tokens per rank over their mean, hottest first</b><br>the hottest rank sets the pace of the layer",
}


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Sorted loads of the first layer and the judged step, which is the last; a line for each distinct traffic."""
    loads = tables["loads"].dropna(subset=["tokens"])
    kinds = [kind for kind in HEADS if (loads["kind"] == kind).any()]
    usable = cells[(cells["status"] == "ok") & cells["cell_id"].isin(loads["cell_id"])]
    if usable.empty or not kinds:
        return empty_figure("No cell recorded its loads. Run a scenario with a router and several ranks")
    figure = panel_figure([HEADS[kind] for kind in kinds], [HEIGHT] * len(kinds))
    labels = dict(zip(usable["cell_id"], cell_labels(usable, without=IRRELEVANT), strict=True))
    colors: dict[str, str] = {}
    for row, kind in enumerate(kinds, start=1):
        for label, shares in _lines(loads[loads["kind"] == kind], labels):
            fresh = label not in colors
            colors.setdefault(label, CYCLE[len(colors) % len(CYCLE)])
            _add_line(figure, row, label, shares, color=colors[label], legend=fresh)
        figure.add_hline(y=1.0, line={"color": GREY, "dash": "dot"}, row=row, col=1)
        figure.update_xaxes(title_text=f"share of the {kind}s", tickformat=".0%", range=[0, 1], row=row, col=1)
        figure.update_yaxes(title_text="load / mean", rangemode="tozero", row=row, col=1)
    return figure


def _lines(loads: pd.DataFrame, labels: dict[str, str]) -> list[tuple[str, list[float]]]:
    """Loads over their mean in falling order, by label; equal traffic is drawn once."""
    lines: dict[str, list[float]] = {}
    for cell_id, mine in loads.groupby("cell_id", sort=False):
        label = labels.get(cell_id)
        if label is None or label in lines or len(lines) >= MAX_ROWS:
            continue
        judged = mine[mine["layer"].eq(mine["layer"].min()) & mine["step"].eq(mine["step"].max())]
        tokens = judged["tokens"].astype(float).sort_values(ascending=False)
        if tokens.sum() > 0:
            lines[label] = (tokens / tokens.mean()).tolist()
    return list(lines.items())


def _add_line(figure: go.Figure, row: int, label: str, shares: list[float], *, color: str, legend: bool) -> None:
    steps = [i / len(shares) for i in range(len(shares) + 1)]
    trace = go.Scatter(
        x=steps, y=[*shares, shares[-1]], mode="lines", line={"color": color, "width": 2, "shape": "hv"},
        name=f"{label} (hottest {shares[0]:.2g}x)" if legend else label, legendgroup=label, showlegend=legend,
        hovertemplate=f"{label}<br>hottest %{{x:.0%}}: %{{y:.2f}} of the mean<extra></extra>",
    )  # fmt: skip
    figure.add_trace(trace, row=row, col=1)
