"""Data: the cells of all runs as a table, with filters, order and downloads."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.choices import FILTERS, run_label, show_empty
from dashboard.data import find_runs
from dashboard.remembered import choose_one, choose_some
from dashboard.show import aside
from workbench.report.units import number_text
from workbench.store.catalog import Catalog, open_catalog
from workbench.store.query import Where, count_cells, count_values, known_columns, select_cells
from workbench.store.strict_json import to_json

NONE = "(none)"
PAGE = 200
SHOWN = ("run_id", "engine", "device", "hardware", "model", "precision", "kernel", "strategy", "skew", "num_gpus",
         "tokens_per_rank", "status", "latency_us", "latency_ci_low_us", "latency_ci_high_us", "error_band_pct",
         "rel_error", "tokens_per_s_per_gpu", "tflops", "peak_memory_bytes", "math_path", "flags")  # fmt: skip
BYTES = ("peak_memory_bytes", "weight_bytes", "scale_up_bytes", "scale_out_bytes", "wire_bytes", "offload_bytes")
MOST_VALUES = 200


def main() -> None:
    st.title("Data")
    aside("Every cell of every run. Times in us, of the slowest rank; filters and order stand in the address.")
    runs = find_runs()
    if not runs.infos:
        show_empty(runs)
        return
    catalog = open_catalog(runs.store)
    labels = {info.run_id: run_label(info) for info in reversed(runs.infos)}
    where = choose_where(catalog, labels)
    number = count_cells(catalog, where=where)
    known = list(known_columns(catalog))
    columns = choose_some("columns", "Columns", known, none="the usual ones") or list(SHOWN)
    left, middle, right = st.columns(3)
    order = choose_one("order", "Order by", [NONE, *known], default=NONE, where=left)
    falling = choose_one("falling", "Direction", ["rising", "falling"], default="rising", where=middle) == "falling"
    pages = [str(page) for page in range(1, max(1, -(-number // PAGE)) + 1)]
    page = int(choose_one("page", f"Page of {len(pages)}", pages, default="1", where=right))
    by = None if order == NONE else order
    chosen = {"columns": columns, "where": where, "order_by": by, "descending": falling}
    rows = select_cells(catalog, **chosen, limit=PAGE, offset=PAGE * (page - 1))
    st.markdown(f"**{number_text(number)} cells**")
    if rows.empty:
        st.info("These filters leave nothing. Take one away in the side bar.")
        return
    formats = {name: st.column_config.NumberColumn(name, format="bytes") for name in BYTES}
    st.dataframe(rows, hide_index=True, height=560, column_config=formats, key="rows")
    show_downloads(lambda: select_cells(catalog, **chosen))


def choose_where(catalog: Catalog, labels: dict[str, str]) -> Where:
    """A choice for each column that varies among all cells, and one of runs."""
    where: dict[str, list] = {}
    if picked := choose_some("runs", "Runs", list(labels), show=labels.__getitem__, where=st.sidebar):
        where["run_id"] = picked
    filters = {"status": "Status", **FILTERS}
    for column, found in column_values(catalog, list(filters)).items():
        values = {str(value): value for value in found}
        if len(values) > 1 and (picked := choose_some(column, filters[column], list(values), where=st.sidebar)):
            where[column] = [values[text] for text in picked]
    return where


def column_values(catalog: Catalog, columns: list[str]) -> dict[str, list[Any]]:
    """What occurs in each column, most frequent first; of a large store counted again only when its runs change."""
    if not catalog.runs_of:
        return _counted(catalog, columns)
    state = hash(tuple((str(path), tuple(runs)) for path, runs in sorted(catalog.runs_of.items())))
    return _kept_values(catalog, columns, state)


@st.cache_data(show_spinner=False, max_entries=4)
def _kept_values(_catalog: Catalog, columns: list[str], state: int) -> dict[str, list[Any]]:
    return _counted(_catalog, columns)


def _counted(catalog: Catalog, columns: list[str]) -> dict[str, list[Any]]:
    found = count_values(catalog, columns=columns)
    return {
        name: [value for value in list(counts)[:MOST_VALUES] if value is not None] for name, counts in found.items()
    }


def show_downloads(rows: Callable[[], pd.DataFrame]) -> None:
    """All rows of these filters and columns, made when asked for."""
    csv, parquet, strict = st.columns(3)
    csv.download_button("CSV", lambda: rows().to_csv(index=False), "cells.csv", "text/csv")
    parquet.download_button("Parquet", lambda: parquet_bytes(rows()), "cells.parquet", "application/octet-stream")
    strict.download_button("JSON", lambda: to_json({"cells": rows()}), "cells.json", "application/json")


def parquet_bytes(rows: pd.DataFrame) -> bytes:
    buffer = BytesIO()
    rows.to_parquet(buffer, index=False)
    return buffer.getvalue()


main()
