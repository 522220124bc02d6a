"""Validation: how far the simulator's predictions lay from measurements that they were not made from."""

from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard.data import find_runs
from dashboard.remembered import choose_some
from dashboard.show import aside, draw
from workbench.analysis.validation import GROUPS, read_points, summarise
from workbench.report.figures import FIGURES

FILE = "validation.parquet"
FILTERS = {"section": "Section", "method": "Method", "hardware": "Hardware", "dtype": "Precision"}
COLUMNS = {
    "median": st.column_config.NumberColumn("median error", format="%.1f%%"),
    "mape": st.column_config.NumberColumn("mean error", format="%.1f%%"),
    "p90": st.column_config.NumberColumn("90% below", format="%.1f%%"),
    "bias": st.column_config.NumberColumn("bias", format="%.1f%%"),
    "coverage": st.column_config.NumberColumn("inside 80% band", format="%.0f%%"),
}


def main() -> None:
    st.title("Validation")
    aside("How far is each method off, on measurements held out from what it was made from?")
    path = find_runs().folder / FILE
    if not path.is_file():
        st.info(
            f"No validation table in `{path.parent}` yet. Make one, it takes under a minute, then reload this page:"
        )
        st.code(f"moe-workbench validate --output {path}", language=None)
        return
    try:
        points = table(str(path), path.stat().st_mtime)
    except ValueError as fault:
        st.error(str(fault))
        return
    for column, label in FILTERS.items():
        values = sorted(points[column].dropna().astype(str).unique())
        if len(values) > 1 and (picked := choose_some(f"by_{column}", label, values, where=st.sidebar)):
            points = points[points[column].isin(picked)]
    if points.empty:
        st.info("These filters leave nothing. Take one away in the side bar.")
        return
    st.dataframe(summarise(points, GROUPS), hide_index=True, column_config=COLUMNS, key="errors")
    draw("validation", FIGURES["validation"].build(pd.DataFrame(), {"validation": points}))


@st.cache_data(show_spinner="Reading the table", max_entries=2)
def table(path: str, changed: float) -> pd.DataFrame:
    return read_points(Path(path))


main()
