"""The side bar: which run and which cells. Choices stand in the address, so that a link opens the same view."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard.data import Chosen, Runs, filtered, find_runs, load, stamp
from workbench.store.run_folder import RunFolder, RunInfo

FILTERS = {
    "engine": "Engine", "hardware": "Hardware", "model": "Model", "precision": "Precision", "strategy": "Dispatch",
    "skew": "Skew", "num_gpus": "GPUs", "tokens_per_rank": "Tokens per rank",
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
    tables: dict[str, pd.DataFrame]


def choose_view() -> View | None:
    """Draw the side bar and give what was chosen; without any run draw what to do and give None."""
    runs = find_runs()
    if not runs.infos:
        st.info(f"No runs in `{runs.folder}` yet. Start one, then reload this page:")
        st.code(f"{START} --results {runs.folder}", language="bash")
        return None
    if runs.is_reference:
        st.info(f"No runs in `{runs.folder}` yet: these are the reference runs. Make your own with `{START}`.")
    info = _choose_run(runs)
    changed = stamp(info.path)
    tables, bad_files = load(info.path, changed)
    if bad_files:
        st.warning(f"Unreadable files, passed over: {', '.join(bad_files)}")
    chosen = _choose_filters(tables["cells"])
    cells, tables = filtered(info.path, changed, chosen)
    run = RunFolder(path=Path(info.path), run_id=info.run_id)
    return View(run, info, changed, chosen, cells, tables)


def _choose_run(runs: Runs) -> RunInfo:
    by_id = {info.run_id: info for info in reversed(runs.infos)}
    wanted = _remembered("run")
    lost = [run_id for run_id in wanted if run_id not in by_id]
    if lost:
        st.warning(f"The run {lost[0]} of this link is not in `{runs.folder}`; the newest is shown.")
    st.session_state[_key("run")] = wanted[0] if wanted and not lost else next(iter(by_id))
    run_id = st.sidebar.selectbox("Run", by_id, key=_key("run"), format_func=lambda name: _run_label(by_id[name]))
    _remember("run", [run_id])
    return by_id[run_id]


def pick_run(run_id: str) -> None:
    """Make the next drawing of the page show this run."""
    st.session_state.setdefault("choices", {})["run"] = [run_id]
    st.session_state.pop(_key("run"), None)


def _run_label(info: RunInfo) -> str:
    when = (info.created_at or "").replace("T", " ")[:16]
    return f"{info.name} · {when}" + ("" if info.status == "finished" else f" · {info.status}")


def _choose_filters(cells: pd.DataFrame) -> Chosen:
    """A choice for each column that varies; an empty one keeps all."""
    chosen = []
    for column, label in FILTERS.items():
        values = [str(value) for value in cells[column].dropna().unique()]
        if len(values) < 2:
            continue
        st.session_state[_key(column)] = [value for value in _remembered(column) if value in values]
        picked = st.sidebar.multiselect(label, values, key=_key(column), placeholder="all")
        _remember(column, picked)
        if picked:
            chosen.append((column, tuple(picked)))
    return tuple(chosen)


def _remembered(name: str) -> list[str]:
    """What the widget holds now, else what this session chose on another page, else what the address says."""
    if _key(name) in st.session_state:
        now = st.session_state[_key(name)]
        return [now] if isinstance(now, str) else list(now)
    chosen = st.session_state.setdefault("choices", {})
    return chosen[name] if name in chosen else st.query_params.get_all(name)


def _remember(name: str, values: list[str]) -> None:
    st.session_state.setdefault("choices", {})[name] = values
    if values:
        st.query_params[name] = values
    elif name in st.query_params:
        del st.query_params[name]


def _key(name: str) -> str:
    return f"choice_{name}"
