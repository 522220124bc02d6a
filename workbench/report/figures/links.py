"""Bytes that a layer sends, by the kind of link they cross."""

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures.bars import stacked_bars
from workbench.report.figures.panels import Tables, empty_figure, part_panels
from workbench.report.theme import LINK_COLORS
from workbench.report.units import byte_scale

HOW = "bytes of dispatch and combine over all ranks; self stays on its rank; settings that change no bar are left out"


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """Stacked ``bytes`` of the links table by class: self, scale_up, scale_out."""
    links = tables["links"]
    by_class = links.assign(link=[link_class(link) for link in links["link"]])
    drawn = part_panels(cells, by_class, part="link", value="bytes", how=HOW)
    if not drawn:
        return empty_figure("No cell sent anything. Run one with several ranks and a dispatch strategy")
    return stacked_bars(drawn, by_class, part="link", value="bytes", colors=LINK_COLORS, scale=byte_scale, axis="sent")


def link_class(link: str) -> str:
    """``scale_out`` of ``scale_out:node0->node1``; a name of no known class stays as it is."""
    return next((name for name in LINK_COLORS if str(link).startswith(name)), str(link))
