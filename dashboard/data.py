"""Where runs lie, and their frames, read again only when a run's files change and only when they are shown."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from workbench.analysis.compare import compare_by
from workbench.analysis.load_metrics import load_figures
from workbench.report.figures import FIGURES
from workbench.report.labels import cell_labels
from workbench.report.summary import Finding, summarise
from workbench.spec.catalog import reference_dir
from workbench.spec.record import TABLE_COLUMNS
from workbench.store.damage import run_problems
from workbench.store.reader import read_table
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

    @property
    def store(self) -> Path:
        """The folder that ``infos`` are of."""
        return reference_dir() if self.is_reference else self.folder


@dataclass(frozen=True)
class RunTables(Mapping[str, pd.DataFrame]):
    """The tables of a run by name; each is read when it is asked for."""

    path: str
    changed: float

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name == "precision_pairs":
            return pairs(self.path, self.changed, "precision")
        if name not in TABLE_COLUMNS and name != "cells":
            raise KeyError(name)
        return load(self.path, self.changed, name)

    def __iter__(self) -> Iterator[str]:
        return iter(("cells", *TABLE_COLUMNS))

    def __len__(self) -> int:
        return 1 + len(TABLE_COLUMNS)


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


def run_at(path: str) -> RunFolder:
    return RunFolder(path=Path(path), run_id=Path(path).name)


def stamp(path: str) -> float:
    """Changes whenever a file of the run does."""
    return sum(entry.stat().st_mtime for entry in Path(path).rglob("*") if entry.is_file() and entry.suffix != ".tmp")


@st.cache_data(show_spinner="Reading the run", max_entries=24)
def load(path: str, changed: float, table: str) -> pd.DataFrame:
    """A table of a run."""
    return read_table(run_at(path), table).frame


@st.cache_data(show_spinner=False, max_entries=64)
def unreadable(path: str, changed: float) -> list[str]:
    """What of a run's files is passed over."""
    return run_problems(run_at(path))


def filtered(path: str, changed: float, chosen: Chosen) -> tuple[pd.DataFrame, RunTables]:
    """The cells that the filters keep, and the tables."""
    cells = load(path, changed, "cells")
    for column, texts in chosen:
        cells = cells[cells[column].astype(str).isin(texts)]
    return cells.reset_index(drop=True), RunTables(path, changed)


@st.cache_data(show_spinner="Comparing", max_entries=24)
def pairs(path: str, changed: float, by: str) -> pd.DataFrame:
    """All pairs of a run along one path, judged together once: a filter neither waits for verdicts nor moves them."""
    cells, tables = filtered(path, changed, ())
    ok = cells[cells["status"] == "ok"]
    return compare_by(ok, tables["samples"], by=by)


@st.cache_data(show_spinner="Drawing", max_entries=64)
def figure(name: str, path: str, changed: float, chosen: Chosen, cell: str | None = None) -> go.Figure:
    """A figure of the report for the chosen cells, or for one of them."""
    cells, tables = filtered(path, changed, chosen)
    return FIGURES[name].build(cells if cell is None else cells[cells["cell_id"] == cell], tables)


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
    return summarise(cells, tables["samples"], pairs=lambda by: pairs(path, changed, by))
