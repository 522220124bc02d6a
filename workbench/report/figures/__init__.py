"""The figures, one file each; dashboard, HTML report and tests draw them from this table."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from workbench.report.figures import (
    comm_share,
    error_latency,
    latency,
    links,
    loads,
    memory,
    message_size,
    speedup,
    stages,
)  # fmt: skip
from workbench.report.figures.panels import Tables


@dataclass(frozen=True)
class FigureSpec:
    """``build`` takes the cells and the other tables by name and gives a figure, or an empty one that says why.

    With ``scope`` it is of use only where cells have that scope.
    """

    title: str
    question: str
    build: Callable[[pd.DataFrame, Tables], go.Figure]
    scope: str | None = None

    def suits(self, cells: pd.DataFrame) -> bool:
        """Whether the figure is of use for these cells."""
        return self.scope is None or bool((cells["scope"] == self.scope).any())


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
}
