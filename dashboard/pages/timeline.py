"""Timeline: the stages of one cell on every rank and stream, and a trace file for Perfetto."""

import streamlit as st

from dashboard.choices import choose_cell
from dashboard.show import open_page, show_figure
from workbench.report.trace import chrome_trace
from workbench.store.strict_json import to_json


def main() -> None:
    view = open_page("Timeline", "What runs when, on which rank and stream, and what waits for what?")
    if view is None:
        return
    cell = choose_cell(view, "stages")
    if cell.empty:
        st.info("None of these cells has stage times. Layers bring them, measured or simulated:")
        st.code("moe-workbench run quickstart", language=None)
        return
    name = cell["cell_id"].iloc[0]
    show_figure("timeline", view, cell=name)
    stages = view.tables["stages"]
    st.download_button(
        "Trace of this cell (for ui.perfetto.dev)",
        lambda: to_json(chrome_trace(cell, stages[stages["cell_id"] == name])),
        f"{view.info.run_id}-{name}.json",
        "application/json",
    )
    show_figure("stages", view)


main()
