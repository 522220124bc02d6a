"""Stacked horizontal bars: one bar a setting, one colour a part."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.panels import Panel, label_axis, panel_figure, rows_height
from workbench.report.theme import color_of

Scale = Callable[[float], tuple[float, str]]


def stacked_bars(
    panels: Sequence[Panel], parts: pd.DataFrame, *, part: str, value: str, colors: Mapping[str, str], scale: Scale,
    axis: str,
) -> go.Figure:  # fmt: skip
    """A bar for each row of each panel; ``parts`` holds cell_id, the part's name and its value.

    A label that several cells share (they differ only in what the figure leaves out) shows their first.
    ``scale`` picks divisor and unit of the axis, ``axis`` its words.
    """
    figure = panel_figure([panel.title for panel in panels], [rows_height(panel) for panel in panels])
    order = [name for name in colors if name in set(parts[part])]
    order += sorted(set(parts[part]) - set(order))
    shown: set[str] = set()
    for row, panel in enumerate(panels, start=1):
        first = dict(zip(reversed(panel.cells["cell_id"].tolist()), reversed(panel.labels), strict=True))
        owner = {label: cell for cell, label in first.items()}
        mine = parts[parts["cell_id"].isin(owner.values())].copy()
        mine["label"] = mine["cell_id"].map(first)
        wide = mine.pivot_table(index="label", columns=part, values=value, aggfunc="sum").reindex(panel.row_names)
        wide = wide.reindex(columns=order).astype(float).fillna(0.0)
        divisor, unit = scale(float(wide.sum(axis=1).max()))
        for index, name in enumerate(order):
            if not wide[name].any():
                continue
            sizes = wide[name] / divisor
            figure.add_trace(
                go.Bar(
                    x=sizes,
                    y=wide.index,
                    orientation="h",
                    name=name,
                    legendgroup=name,
                    showlegend=name not in shown,
                    marker={"color": color_of(name, index, dict(colors))},
                    hovertemplate=f"%{{y}}<br>{name} %{{x:.3g}} {unit}<extra></extra>",
                ),
                row=row,
                col=1,
            )
            shown.add(name)
        label_axis(figure, row, panel.row_names)
        figure.update_xaxes(title_text=f"{axis} ({unit})", row=row, col=1)
    figure.update_layout(barmode="stack")
    return figure
