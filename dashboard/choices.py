"""The side bar: which run and which cells, kept in the address."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard.data import Chosen, Runs, filtered, find_runs, stamp, unreadable
from dashboard.remembered import choose_one, choose_some, forget_address, key, remembered
from workbench.report.labels import cell_labels
from workbench.store.run_folder import RunFolder, RunInfo

FILTERS = {
    "engine": "Engine", "hardware": "Hardware", "model": "Model", "precision": "Precision", "kernel": "Kernel",
    "strategy": "Dispatch", "skew": "Skew", "num_gpus": "GPUs", "tokens_per_rank": "Tokens per rank",
}  # fmt: skip
START = "moe-workbench run quickstart"


@dataclass(frozen=True)
class View:
    """What a page shows: a run, its files' stamp, the filters, and the cells and tables they leave."""

    run: RunFolder
    info: RunInfo
    changed: float
    chosen: Chosen
    cells: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]


def choose_view() -> View | None:
    """Draw the side bar and give what was chosen; without any run draw what to do and give None."""
    runs = find_runs()
    if not runs.infos:
        show_empty(runs)
        return None
    if runs.is_reference:
        st.info(f"No runs in `{runs.folder}` yet: these are the reference runs. Make your own with `{START}`.")
    info = _choose_run(runs)
    changed = stamp(info.path)
    if bad_files := unreadable(info.path, changed):
        st.warning(f"Unreadable files, passed over: {', '.join(bad_files)}")
    whole, _ = filtered(info.path, changed, ())
    chosen = _choose_filters(whole)
    cells, tables = filtered(info.path, changed, chosen)
    run = RunFolder(path=Path(info.path), run_id=info.run_id)
    return View(run, info, changed, chosen, cells, tables)


def show_empty(runs: Runs) -> None:
    """What to do when there is nothing to see."""
    st.info(f"No runs in `{runs.folder}` yet. Start one, then reload this page:")
    st.code(f"{START} --results {runs.folder}", language=None)


def choose_cell(view: View, table: str) -> pd.DataFrame:
    """One of the chosen cells that have rows in ``table``, as a frame of one row; an empty frame without any."""
    known = set(view.tables[table]["cell_id"])
    usable = view.cells[(view.cells["status"] == "ok") & view.cells["cell_id"].isin(known)]
    if usable.empty:
        return usable
    labels = dict(zip(usable["cell_id"], cell_labels(usable), strict=True))
    engines = dict(zip(usable["cell_id"], usable["engine"], strict=True))
    cell = choose_one("cell", "Cell", list(labels), show=lambda name: f"{labels[name]} ({engines[name]})")
    return usable[usable["cell_id"] == cell]


def run_label(info: RunInfo) -> str:
    when = (info.created_at or "").replace("T", " ")[:16]
    return f"{info.name} · {when}" + ("" if info.status == "finished" else f" · {info.status}")


def pick_run(run_id: str) -> None:
    """Make the next drawing of the page show this run."""
    st.session_state.setdefault("choices", {})["run"] = [run_id]
    st.session_state.pop(key("run"), None)
    forget_address("run")


def _choose_run(runs: Runs) -> RunInfo:
    by_id = {info.run_id: info for info in reversed(runs.infos)}
    lost = [run_id for run_id in remembered("run") if run_id not in by_id]
    if lost:
        st.warning(f"The run {lost[0]} of this link is not in `{runs.folder}`; the newest is shown.")
    return by_id[choose_one("run", "Run", list(by_id), show=lambda name: run_label(by_id[name]), where=st.sidebar)]


def _choose_filters(cells: pd.DataFrame) -> Chosen:
    """A choice for each column that varies; an empty one keeps all."""
    chosen = []
    for column, label in FILTERS.items():
        values = [str(value) for value in cells[column].dropna().unique()]
        if len(values) > 1 and (picked := choose_some(column, label, values, where=st.sidebar)):
            chosen.append((column, tuple(picked)))
    return tuple(chosen)
