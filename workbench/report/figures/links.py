"""Bytes that a layer sends, by the kind of link they cross."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.bars import stacked_bars
from workbench.report.figures.panels import Tables, empty_figure, part_panels
from workbench.report.theme import LINK_COLORS
from workbench.report.units import byte_scale

HOW = (
    "bytes of dispatch and combine over all ranks; self stays on its rank, and only measured cells count it; "
    "settings that change no bar are left out"
)
CROSSED = {"scale_up_bytes": "scale_up", "scale_out_bytes": "scale_out"}


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Stacked ``scale_up_bytes`` and ``scale_out_bytes`` of the cells, with what stayed at home from the links."""
    sent = sent_bytes(cells, tables["links"])
    drawn = part_panels(cells, sent, part="link", value="bytes", how=HOW)
    if not drawn:
        return empty_figure("No cell sent anything. Run one with several ranks and a dispatch strategy")
    return stacked_bars(drawn, sent, part="link", value="bytes", colors=LINK_COLORS, scale=byte_scale, axis="sent")


def sent_bytes(cells: pd.DataFrame, links: pd.DataFrame) -> pd.DataFrame:
    """Rows of cell_id, link class and bytes; a cell that says nothing about its links has none."""
    known = cells.dropna(subset=list(CROSSED), how="all")
    crossed = known.rename(columns=CROSSED).melt("cell_id", list(CROSSED.values()), "link", "bytes")
    classed = links.assign(link=[link_class(name) for name in links["link"]])
    at_home = classed[classed["link"].eq("self") & classed["cell_id"].isin(known["cell_id"])]
    home = at_home.groupby(["cell_id", "link"])["bytes"].sum().reset_index()
    return pd.concat([crossed, home], ignore_index=True).dropna(subset=["bytes"])


def link_class(name: str) -> str:
    """The class in a link's name, which reads ``hop/class/direction/rank``; a name without one stays as it is."""
    return next((part for part in str(name).split("/") if part in LINK_COLORS), str(name))
