"""The figures, one file each; dashboard, HTML report and tests draw them from this table."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures import (
    comm_share,
    error_latency,
    heatmap,
    imbalance,
    latency,
    links,
    loads,
    memory,
    memory_ranks,
    message_size,
    ratios,
    roofline,
    scaling,
    speedup,
    stages,
    timeline,
    validation,
)  # fmt: skip
from workbench.report.figures.panels import Tables


@dataclass(frozen=True)
class FigureSpec:
    """``build`` takes the cells and the other tables by name and gives a figure, or an empty one that says why.

    With ``scope`` it is of use only where cells have that scope, with ``needs`` only where one has all these columns,
    with ``varies`` only where that column holds several values.
    One that shows a single cell or more than one run is not ``in_report``.
    """

    title: str
    question: str
    build: Callable[[pd.DataFrame, Tables], go.Figure]
    scope: str | None = None
    needs: tuple[str, ...] = ()
    varies: str | None = None
    in_report: bool = True

    def suits(self, cells: pd.DataFrame) -> bool:
        """Whether the figure is of use for these cells."""
        if self.scope is not None and not (cells["scope"] == self.scope).any():
            return False
        if self.varies is not None and cells[self.varies].nunique() < 2:
            return False
        return not self.needs or bool(cells[list(self.needs)].notna().all(axis=1).any())


FIGURES: dict[str, FigureSpec] = {
    "speedup": FigureSpec("Speed-up by precision", "What does a precision gain over bf16?", speedup.build),
    "latency": FigureSpec("Latency by precision", "How long does the layer take in each setting?", latency.build),
    "error_latency": FigureSpec("Error against latency", "Which precision is worth its error?", error_latency.build),
    "stages": FigureSpec("Stages of the layer", "Where does the time go?", stages.build),
    "comm_share": FigureSpec("Share of communication", "How much of the layer is the all-to-all?", comm_share.build),
    "message_size": FigureSpec(
        "All-to-all over message sizes",
        "Which strategy carries a message of this size fastest?",
        message_size.build,
        scope="all_to_all",
    ),
    "links": FigureSpec("Bytes by link", "What crosses which link under which strategy?", links.build),
    "loads": FigureSpec("Load of experts and ranks", "How uneven is the traffic?", loads.build),
    "memory": FigureSpec("Memory of a rank", "Does it fit, and what fills it?", memory.build),
    "roofline": FigureSpec(
        "Roofline", "What holds each cell back: arithmetic or memory?", roofline.build, needs=roofline.NEEDS
    ),
    "scaling": FigureSpec("Scaling", "What does each further GPU bring?", scaling.build, varies="num_gpus"),
    "balancers": FigureSpec(
        "Routers and balancers", "What does each give back?", ratios.build_balancers, in_report=False
    ),
    "imbalance": FigureSpec("Imbalance over steps", "Does the imbalance last?", imbalance.build, in_report=False),
    "heatmap": FigureSpec(
        "Load by layer", "Which experts and ranks are hot, and where?", heatmap.build, in_report=False
    ),
    "timeline": FigureSpec("Timeline", "What runs when, on which rank and stream?", timeline.build, in_report=False),
    "memory_ranks": FigureSpec("Memory by rank", "How full is each rank?", memory_ranks.build, in_report=False),
    "comparison": FigureSpec("Verdicts", "What moved between these runs?", ratios.build_comparison, in_report=False),
    "validation": FigureSpec(
        "Predicted over measured", "How far off is the simulator?", validation.build, in_report=False
    ),
}
