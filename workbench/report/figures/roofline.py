"""Where cells stand under the roofs of their device: its peaks and its memory bandwidth."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.analysis.columns import planned_cells, value_at
from workbench.report.figures.panels import Panel, Tables, empty_figure, panel_figure, panels
from workbench.report.theme import GREY, PRECISION_COLORS, color_of
from workbench.report.units import number_text, percent_text, time_text

NEEDS = ("tflops", "hbm_gb_per_s", "latency_us")
HOW = "arithmetic intensity: floating point operations over bytes of device memory, of the whole cell"
HEIGHT = 400
PEAKS = {"bf16_dense_tflops": "bf16", "fp8_dense_tflops": "fp8", "fp4_dense_tflops": "fp4"}


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """``tflops`` over FLOP per byte, both logarithmic, with the roofs that the catalog names for the hardware."""
    usable = cells.dropna(subset=list(NEEDS))
    usable = usable[(usable["tflops"].astype(float) > 0) & (usable["hbm_gb_per_s"].astype(float) > 0)]
    drawn = panels(usable, without=("precision", "scale_rule"), how=HOW)
    if not drawn:
        return empty_figure("No cell has both its operations and its memory traffic. Run a layer with engine: measure")
    figure = panel_figure([panel.title for panel in drawn], [HEIGHT] * len(drawn))
    shown: set[str] = set()
    for row, panel in enumerate(drawn, start=1):
        cells = panel.cells.assign(
            label=panel.labels,
            intensity=1e3 * panel.cells["tflops"].astype(float) / panel.cells["hbm_gb_per_s"].astype(float),
        )
        _add_roofs(figure, row, _hardware(panel), reach=(cells["intensity"].min(), cells["intensity"].max()))
        _add_cells(figure, row, cells, shown)
        figure.update_xaxes(title_text="FLOP per byte", type="log", dtick=1, row=row, col=1)
        figure.update_yaxes(title_text="TFLOP/s", type="log", dtick=1, row=row, col=1)
    return figure


def _hardware(panel: Panel) -> dict[str, Any]:
    return next((value_at(cell, "cluster.hardware") or {} for cell in planned_cells(panel.cells)), {})


def _add_roofs(figure: go.Figure, row: int, hardware: dict[str, Any], *, reach: tuple[float, float]) -> None:
    """The peaks as far as memory lets them, on the catalog's figures; none for a part that it does not know."""
    bandwidth = hardware.get("memory_tb_per_s")
    peaks = {name: hardware[field] for field, name in PEAKS.items() if hardware.get(field)}
    if not bandwidth or not peaks:
        return
    left = min(reach[0], min(peaks.values()) / bandwidth) / 2
    for name, peak in peaks.items():
        ridge = peak / bandwidth
        xs = [left, ridge, max(reach[1], ridge) * 4]
        told = f"{name}: peak {number_text(peak)} TFLOP/s, memory {number_text(bandwidth)} TB/s"
        trace = go.Scatter(
            x=xs, y=[bandwidth * left, peak, peak], mode="lines+text", line={"color": GREY, "width": 1.5},
            text=["", "", f"{name} peak"], textposition="top left", hovertext=[told] * 3, hoverinfo="text",
            showlegend=False,
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)


def _add_cells(figure: go.Figure, row: int, cells: pd.DataFrame, shown: set[str]) -> None:
    for index, (precision, mine) in enumerate(cells.groupby("precision", sort=False)):
        name = str(precision)
        hover = [
            f"{cell['label']}<br>{name}: {number_text(cell['tflops'])} TFLOP/s, {number_text(cell['hbm_gb_per_s'])} "
            f"GB/s<br>{percent_text(cell['roofline_fraction'])} of the roofline, bound by {cell['bound_by']}, "
            f"{time_text(cell['latency_us'])}"
            for cell in mine.to_dict("records")
        ]
        trace = go.Scatter(
            x=mine["intensity"], y=mine["tflops"].astype(float), mode="markers", name=name, legendgroup=name,
            showlegend=name not in shown, hovertext=hover, hoverinfo="text",
            marker={"color": color_of(name, index, PRECISION_COLORS), "size": 9},
        )  # fmt: skip
        figure.add_trace(trace, row=row, col=1)
        shown.add(name)
