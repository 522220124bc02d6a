"""Memory: what fills each rank, and what fits where."""

import streamlit as st

from dashboard.choices import View, choose_cell
from dashboard.show import aside, open_page, show_figure
from workbench.report.figures.memory_ranks import capacities
from workbench.report.labels import cell_labels

COLUMNS = {
    "peak_memory_bytes": st.column_config.NumberColumn("needs", format="bytes"),
    "capacity": st.column_config.NumberColumn("device has", format="bytes"),
    "shortage_bytes": st.column_config.NumberColumn("short of", format="bytes"),
    "weight_bytes": st.column_config.NumberColumn("weights", format="bytes"),
    "offload_bytes": st.column_config.NumberColumn("offloaded", format="bytes"),
}
MOST = 1000


def main() -> None:
    view = open_page("Memory", "Does it fit, and what fills it?")
    if view is None:
        return
    cell = choose_cell(view, "memory")
    show_figure("memory_ranks", view, cell=cell["cell_id"].iloc[0] if len(cell) else None)
    show_fits(view)
    show_figure("memory", view)


def show_fits(view: View) -> None:
    """A row for each cell that tells its memory, those that do not fit first."""
    st.subheader("What fits where", anchor="fits")
    known = view.cells[view.cells["peak_memory_bytes"].notna() | view.cells["fits"].notna()]
    if known.empty:
        aside("No cell tells its memory. Simulated layers do: run one with engine: simulate")
        return
    known = known.sort_values("fits", kind="stable", na_position="last").head(MOST)
    table = known[["engine", "hardware", "fits", *(name for name in COLUMNS if name in known)]].copy()
    table.insert(0, "setting", cell_labels(known))
    table["capacity"] = capacities(known)
    st.dataframe(table, hide_index=True, column_config=COLUMNS, key="fits")


main()
