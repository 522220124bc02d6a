"""Where the time of a layer goes."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.bars import stacked_bars
from workbench.report.figures.panels import Tables, empty_figure, panels
from workbench.report.theme import STAGE_COLORS
from workbench.report.units import time_scale

HOW = "stage times of the rank that finishes last, overlap not taken off"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Stacked ``duration_us`` by stage of each cell's slowest rank."""
    slowest = slowest_rank(tables["stages"])
    drawn = panels(cells[cells["cell_id"].isin(slowest["cell_id"])], how=HOW)
    if not drawn:
        return empty_figure("No cell has stage times. Measured and simulated layers bring them: run a scenario")
    return stacked_bars(
        drawn, slowest, part="stage", value="duration_us", colors=STAGE_COLORS, scale=time_scale, axis="time"
    )


def slowest_rank(stages: pd.DataFrame) -> pd.DataFrame:
    """The stage rows of that rank of each cell which ends last."""
    if stages.empty:
        return stages
    ends = stages["start_us"].fillna(0.0) + stages["duration_us"].fillna(0.0)
    last = ends.groupby(stages["cell_id"]).idxmax()
    ranks = stages.loc[last.to_list()].set_index("cell_id")["rank"]
    return stages[stages["rank"].eq(stages["cell_id"].map(ranks)).fillna(True)]
