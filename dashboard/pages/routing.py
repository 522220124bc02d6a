"""Routing and balance: where the load falls, whether it lasts, and what routers and balancers give back."""

import streamlit as st

from dashboard.choices import View, choose_cell
from dashboard.show import aside, open_page, show_figure, show_findings, show_loads
from workbench.report.labels import cell_labels

ABOUT = ("skew", "Times of this processor")
COLUMNS = {
    "dropped_tokens": st.column_config.NumberColumn("dropped tokens"),
    "load_max_over_mean": st.column_config.NumberColumn("hottest / mean", format="%.3g"),
    "touched_experts": st.column_config.NumberColumn("experts touched", format="%.4g"),
}


def main() -> None:
    view = open_page("Routing and balance", "What skew costs, and what routers and balancers give back.")
    if view is None:
        return
    show_findings(view, about=ABOUT)
    show_figure("loads", view)
    cell = choose_cell(view, "loads")
    show_figure("heatmap", view, cell=cell["cell_id"].iloc[0] if len(cell) else None)
    for name in ("imbalance", "balancers"):
        show_figure(name, view)
    show_drops(view)
    show_loads(view)


def show_drops(view: View) -> None:
    """Tokens that found no place, where capacity is limited."""
    st.subheader("Dropped tokens", anchor="drops")
    known = view.cells[view.cells["dropped_tokens"].notna()]
    dropping = known[known["dropped_tokens"].astype(float) > 0]
    if dropping.empty:
        aside(f"No token was dropped in {len(known)} cells that count them. A capacity: balance.capacity")
        return
    table = dropping[list(COLUMNS)].astype(float)
    table.insert(0, "setting", cell_labels(dropping))
    st.dataframe(table, hide_index=True, column_config=COLUMNS, key="drops")


main()
