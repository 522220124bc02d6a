"""Memory that the fullest rank needs, by what fills it."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.bars import stacked_bars
from workbench.report.figures.panels import Tables, empty_figure, part_panels
from workbench.report.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from workbench.report.units import byte_scale

HOW = "bytes of the rank that needs most; settings that change no bar are left out"
COLORS = {
    "weights": BLUE, "routed_experts": BLUE, "shared_expert": SKY, "router": GREY, "kv_cache": GREEN,
    "activations": ORANGE, "dispatch_buffers": PURPLE, "gradients": YELLOW, "optimizer": VERMILLION,
}  # fmt: skip


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Stacked ``bytes`` of the memory table, the fullest rank of each cell."""
    fullest = fullest_rank(tables["memory"])
    drawn = part_panels(cells, fullest, part="what", value="bytes", how=HOW)
    if not drawn:
        return empty_figure("No cell recorded its memory. Simulated layers bring it: run one with engine: simulate")
    return stacked_bars(drawn, fullest, part="what", value="bytes", colors=COLORS, scale=byte_scale, axis="memory")


def fullest_rank(memory: pd.DataFrame) -> pd.DataFrame:
    """The rows of that rank of each cell which holds most."""
    if memory.empty:
        return memory
    totals = memory.groupby(["cell_id", "rank"], dropna=False, sort=False)["bytes"].sum().reset_index()
    fullest = totals.loc[totals.groupby("cell_id", sort=False)["bytes"].idxmax(), ["cell_id", "rank"]]
    return memory.merge(fullest, on=["cell_id", "rank"])
