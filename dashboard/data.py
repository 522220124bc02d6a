"""Where runs lie, and their frames, read again only when a run's files change."""

import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from workbench.analysis.load_metrics import load_figures
from workbench.report.figures import FIGURES
from workbench.report.labels import cell_labels
from workbench.report.summary import Finding, summarise
from workbench.spec.catalog import reference_dir
from workbench.store.reader import read_tables, unreadable_files
from workbench.store.run_folder import RunFolder, RunInfo, list_runs

RESULTS_VARIABLE = "MOE_WORKBENCH_RESULTS"
Chosen = tuple[tuple[str, tuple[str, ...]], ...]
"""Filters: column and the texts of its values to keep, for the columns that are filtered."""


@dataclass(frozen=True)
class Runs:
    """The runs to choose from, oldest first; ``is_reference`` when they are those that come with the workbench."""

    folder: Path
    infos: tuple[RunInfo, ...]
    is_reference: bool


def results_folder() -> Path:
    """Where runs are looked for and started: ``MOE_WORKBENCH_RESULTS``, else ./results."""
    return Path(os.environ.get(RESULTS_VARIABLE) or "results")


def find_runs() -> Runs:
    """Runs of the results folder, or the reference runs that come with the workbench when it has none."""
    folder = results_folder()
    infos = list_runs(folder)
    if infos:
        return Runs(folder, tuple(infos), False)
    return Runs(folder, tuple(list_runs(reference_dir())), True)


def stamp(path: str) -> float:
    """Changes whenever a file of the run does."""
    return sum(entry.stat().st_mtime for entry in Path(path).rglob("*") if entry.is_file() and entry.suffix != ".tmp")


@st.cache_data(show_spinner="Reading the run", max_entries=8)
def load(path: str, changed: float) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """All tables of a run and the names of its unreadable files."""
    run = RunFolder(path=Path(path), run_id=Path(path).name)
    return {name: result.frame for name, result in read_tables(run).items()}, unreadable_files(run)


def filtered(path: str, changed: float, chosen: Chosen) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The cells that the filters keep, and the tables."""
    tables, _ = load(path, changed)
    cells = tables["cells"]
    for column, texts in chosen:
        cells = cells[cells[column].astype(str).isin(texts)]
    return cells.reset_index(drop=True), tables


@st.cache_data(show_spinner="Drawing", max_entries=64)
def figure(name: str, path: str, changed: float, chosen: Chosen) -> go.Figure:
    """A figure of the report for the chosen cells."""
    cells, tables = filtered(path, changed, chosen)
    return FIGURES[name].build(cells, tables)


@st.cache_data(show_spinner="Counting", max_entries=32)
def loads(path: str, changed: float, chosen: Chosen) -> pd.DataFrame:
    """How even the loads of the chosen cells were: a setting, what is counted, and the figures of it."""
    cells, tables = filtered(path, changed, chosen)
    figures = load_figures(cells, tables)
    labels = dict(zip(cells["cell_id"], cell_labels(cells), strict=True))
    figures.insert(0, "setting", figures["cell_id"].map(labels))
    return figures


@st.cache_data(show_spinner="Comparing", max_entries=32)
def findings(path: str, changed: float, chosen: Chosen) -> list[Finding]:
    """The summary of the chosen cells."""
    cells, tables = filtered(path, changed, chosen)
    return summarise(cells, tables["samples"])
