"""Precisions: what each gains over bf16, how sure that is, what error it costs, and what memory it takes."""

import pandas as pd
import streamlit as st

from dashboard.choices import View
from dashboard.show import aside, open_page, show_figure, show_findings
from workbench.report.conditions import APART

ABOUT = ("precision", "Relative error", "Times of this processor")
COLUMNS = {
    "rel_error": st.column_config.NumberColumn("rel. error, median", format="%.3g"),
    "weight_bytes": st.column_config.NumberColumn("weights, largest", format="bytes"),
    "peak_memory_bytes": st.column_config.NumberColumn("memory, largest", format="bytes"),
    "math_path": st.column_config.TextColumn("math path"),
    "cells": st.column_config.NumberColumn("cells"),
}


def main() -> None:
    view = open_page("Precisions", "Which precision is fastest for this layer here, and at what numerical error?")
    if view is None:
        return
    show_findings(view, about=ABOUT)
    for name in ("speedup", "error_latency"):
        show_figure(name, view)
    show_paths(view)
    show_figure("latency", view)


def show_paths(view: View) -> None:
    """How each precision is multiplied on each device, and what it takes."""
    usable = view.cells[view.cells["status"] == "ok"].dropna(subset=["precision"])
    if usable.empty:
        return
    st.subheader("Math path and memory", anchor="math-path")
    aside("upcast: stored small, multiplied wide; emulated: computed in another format. No device ranks another's.")
    figures = {
        "cells": ("cell_id", "size"),
        "math_path": ("math_path", lambda paths: ", ".join(sorted(paths.dropna().unique()))),
        "rel_error": ("rel_error", "median"),
        "weight_bytes": ("weight_bytes", "max"),
        "peak_memory_bytes": ("peak_memory_bytes", "max"),
    }
    table = usable.groupby([*APART, "precision"], sort=False, dropna=False).agg(**figures).reset_index()
    st.dataframe(pd.DataFrame(table), hide_index=True, column_config=COLUMNS, key="paths")


main()
