"""Speed-up of every precision over bf16 in the same setting, with the verdict."""

import pandas as pd
import plotly.graph_objects as go

from workbench.analysis.columns import planned_cells
from workbench.analysis.compare import among, compare_by
from workbench.report.figures.dots import Dot, add_dots
from workbench.report.figures.panels import Panel, Tables, empty_figure, label_axis, panel_figure, panels, rows_height
from workbench.report.theme import GREY, PRECISION_COLORS, VERDICT_SYMBOLS

HOW = "right of 1 is faster than {baseline}; triangle: a verdict, open circle: unclear; bar: 95% bootstrap interval"
EMPTY = "Nothing to hold against one another: run a scenario whose matrix has bf16 and another precision"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Dots of baseline time over candidate time from compare_by; the symbol is the verdict.

    ``tables["precision_pairs"]`` is the frame of compare_by where it is known already, of these cells and others.
    """
    if cells.empty or not any(planned_cells(cells)):
        return empty_figure(EMPTY)
    known = tables.get("precision_pairs")
    pairs = compare_by(cells, tables["samples"], by="precision") if known is None else among(known, cells)
    pairs = pairs.dropna(subset=["ratio"])
    candidates = cells[cells["cell_id"].isin(pairs["candidate_cell"])]
    if candidates.empty:
        return empty_figure(EMPTY)
    how = HOW.format(baseline=" or ".join(dict.fromkeys(pairs["baseline"])))
    drawn = panels(candidates, needs=["latency_us"], without=("precision", "scale_rule"), how=how)
    figure = panel_figure([panel.title for panel in drawn], [rows_height(panel) for panel in drawn])
    shown: set[str] = set()
    by_cell = {row["candidate_cell"]: row for row in pairs.to_dict("records")}
    for row, panel in enumerate(drawn, start=1):
        add_dots(figure, row, _dots(panel, by_cell), colors=PRECISION_COLORS, shown=shown)
        label_axis(figure, row, panel.row_names)
        figure.update_xaxes(title_text="speed-up", row=row, col=1)
        figure.add_vline(x=1.0, line={"color": GREY, "dash": "dot"}, row=row, col=1)
    return figure


def _dots(panel: Panel, by_cell: dict[str, dict]) -> list[Dot]:
    dots = []
    for label, row in zip(panel.labels, panel.cells.to_dict("records"), strict=True):
        pair = by_cell[row["cell_id"]]
        low, high = (None if pd.isna(pair[end]) else 1 / pair[end] for end in ("ratio_high", "ratio_low"))
        hover = f"{label}<br>{pair['candidate']} over {pair['baseline']}: {1 / pair['ratio']:.2f}x, {pair['verdict']}"
        hover += f"<br>{pair['why']}"
        symbol = VERDICT_SYMBOLS[pair["verdict"]]
        dots.append(Dot(label, str(row["precision"]), 1 / pair["ratio"], low, high, hover, symbol))
    return dots
