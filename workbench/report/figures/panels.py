"""What figures share: a panel for each engine and device, so that times that must not be ranked never share an axis."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.report.conditions import condition_groups, group_title
from workbench.report.labels import cell_labels, silent_columns
from workbench.report.theme import FONT, GRID, TEXT

Tables = Mapping[str, pd.DataFrame]

MAX_ROWS = 40
ROW_PX = 24
HEAD_PX = 84
FOOT_PX = 46
LEGEND_PX = 36
WRAP = 84
WRAP_TITLE = 72


@dataclass(frozen=True)
class Panel:
    """Cells that may share an axis; ``labels`` name the rows of the axis, one for each cell."""

    title: str
    cells: pd.DataFrame
    labels: tuple[str, ...]

    @property
    def row_names(self) -> list[str]:
        """Distinct labels in order of appearance."""
        return list(dict.fromkeys(self.labels))


def panels(cells: pd.DataFrame, *, needs: Sequence[str] = (), without: tuple[str, ...] = (), how: str = "",
           spread: bool = True) -> list[Panel]:  # fmt: skip
    """A panel for each engine and device among the ``ok`` cells that have every column of ``needs``.

    ``without`` leaves columns out of the labels (they are told by colour); ``how`` ends the title; ``spread`` says
    how sure the times are. At most 40 rows are drawn, and the title says when that leaves some out.
    """
    usable = cells[cells["status"] == "ok"].dropna(subset=list(needs))
    return [_panel(group, without, how, spread) for _, group in condition_groups(usable)]


def part_panels(cells: pd.DataFrame, parts: pd.DataFrame, *, part: str, value: str, how: str) -> list[Panel]:
    """Panels for bars of ``parts`` (cell_id, the part's name, its value); settings that change no bar are left out."""
    wide = parts.pivot_table(index="cell_id", columns=part, values=value, aggfunc="sum").astype(float).fillna(0.0)
    usable = cells[(cells["status"] == "ok") & cells["cell_id"].isin(wide.index)]
    silent = {key: silent_columns(group, wide.loc[group["cell_id"]]) for key, group in condition_groups(usable)}
    return [_panel(group, silent[key], how, False) for key, group in condition_groups(usable)]


def _panel(cells: pd.DataFrame, without: tuple[str, ...], how: str, spread: bool) -> Panel:
    labels = cell_labels(cells, without=without)
    kept = list(dict.fromkeys(labels))[:MAX_ROWS]
    title, note = group_title(cells)
    if not spread:
        title, note = ", ".join(title.split(", ")[:2]), ""
    left_out = len(set(labels)) - len(kept)
    if left_out:
        how += f"; the first {len(kept)} of {len(kept) + left_out} settings, filter to see the others"
    chosen = [label in kept for label in labels]
    head = "<br>".join(textwrap.wrap(title, WRAP_TITLE))
    return Panel(
        title="<br>".join([f"<b>{head}</b>", *textwrap.wrap(how, WRAP), *([f"<i>{note}</i>"] if note else [])]),
        cells=cells[chosen],
        labels=tuple(label for label, keep in zip(labels, chosen, strict=True) if keep),
    )


def panel_figure(heads: Sequence[str], heights: Sequence[int]) -> go.Figure:
    """Subplots below one another, each ``heights`` pixels of plotting area under its own head."""
    total = sum(heights) + len(heights) * (HEAD_PX + FOOT_PX) + LEGEND_PX
    inner = total - HEAD_PX - FOOT_PX - LEGEND_PX
    figure = make_subplots(
        rows=len(heads),
        cols=1,
        row_heights=list(heights),
        vertical_spacing=(HEAD_PX + FOOT_PX) / inner if len(heads) > 1 else 0,
        subplot_titles=[""] * len(heads),
    )
    figure.update_layout(
        height=total,
        margin={"l": 10, "r": 20, "t": HEAD_PX + LEGEND_PX, "b": FOOT_PX},
        font={"family": FONT, "size": 12, "color": TEXT},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1 + HEAD_PX / inner, "yanchor": "bottom"},
        hoverlabel={"align": "left"},
        bargap=0.25,
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    for row, head in enumerate(heads, start=1):
        top = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].domain[1]
        figure.add_annotation(
            text=head, x=0, y=top, xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=8,
            showarrow=False, align="left", font={"size": 12},
        )  # fmt: skip
    return figure


def rows_height(panel: Panel) -> int:
    """Pixels for a panel whose labels stand on the vertical axis."""
    return max(len(panel.row_names) * ROW_PX, 2 * ROW_PX)


def label_axis(figure: go.Figure, row: int, names: Sequence[str]) -> None:
    """A vertical axis of labels that reads from the top."""
    figure.update_yaxes(
        row=row,
        col=1,
        type="category",
        categoryorder="array",
        categoryarray=list(names),
        autorange="reversed",
        showgrid=False,
    )


def empty_figure(what_to_do: str) -> go.Figure:
    """A figure that says why there is nothing to see and what brings something."""
    figure = go.Figure()
    figure.update_layout(
        height=160, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", xaxis={"visible": False},
        yaxis={"visible": False}, margin={"l": 10, "r": 10, "t": 10, "b": 10},
    )  # fmt: skip
    figure.add_annotation(text=what_to_do, showarrow=False, font={"family": FONT, "size": 14, "color": TEXT})
    return figure
