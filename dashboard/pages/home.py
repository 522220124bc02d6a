"""Home: what this machine has, the latest runs, and where to start."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import psutil
import streamlit as st

from dashboard.choices import START, run_label
from dashboard.control import ask
from dashboard.data import Runs, find_runs
from dashboard.show import aside
from workbench.store.catalog import open_catalog
from workbench.store.damage import store_problems
from workbench.store.query import count_cells

LATEST = 5
WAIT_S = 5
ANSWERS = {
    "pages/precisions.py": "Which precision is worth it?",
    "pages/dispatch.py": "Which dispatch wins, and what does it cost?",
    "pages/routing.py": "What does skew cost?",
    "pages/memory.py": "Does it fit?",
    "pages/scaling.py": "What does each further GPU bring?",
    "pages/compare.py": "What moved since last week?",
}


def main() -> None:
    st.title("MoE workbench")
    aside("Measured and simulated MoE layers in one place, each figure with its conditions and its spread.")
    runs = find_runs()
    show_latest(runs)
    show_start(runs)
    show_machine()
    show_problems(str(runs.store), len(runs.infos))


def show_latest(runs: Runs) -> None:
    st.subheader("Latest runs", anchor="latest")
    if runs.is_reference:
        st.info(f"No runs in `{runs.folder}` yet: these are the reference runs.")
    if not runs.infos:
        return
    number = count_cells(open_catalog(runs.store))
    aside(f"{len(runs.infos)} runs with {number:,} cells in {runs.store}")
    for info in list(reversed(runs.infos))[:LATEST]:
        counts = ", ".join(f"{number} {status}" for status, number in info.counts.items())
        st.page_link("pages/run.py", label=f"{run_label(info)}: {counts}", query_params={"run": info.run_id})


def show_start(runs: Runs) -> None:
    st.subheader("Start here", anchor="start")
    st.page_link("pages/run.py", label="Pick a scenario and run it", query_params={"suite": "quickstart"})
    aside("or in a terminal:")
    st.code(f"{START} --results {runs.folder}", language=None)
    for page, question in ANSWERS.items():
        st.page_link(page, label=question)


def show_machine() -> None:
    """What can be told at once; the rest takes the doctor some seconds."""
    st.subheader("This machine", anchor="machine")
    memory = psutil.virtual_memory().total / 1e9
    gpus = gpu_names()
    st.markdown(f"{os.cpu_count()} cores, {memory:.0f} GB of memory, " + (", ".join(gpus) or "no NVIDIA GPU"))
    if not gpus:
        aside("Times of GPUs are simulated here; what is measured on this processor does not rank GPU precisions.")
    if st.button("Look closer", help="Runs moe-workbench doctor"):
        with st.spinner("moe-workbench doctor"):
            answer = ask("doctor", "--format", "json")
        st.code(answer.fault or json.dumps(answer.told, indent=1), language=None, height=400)


@st.cache_data(ttl=600, show_spinner=False)
def gpu_names() -> list[str]:
    """What nvidia-smi names; nothing where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    line = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def show_problems(folder: str, number: int) -> None:
    """What lies in the store and is passed over."""
    found = problems(folder, number)
    if found:
        with st.expander(f"{len(found)} files are passed over"):
            st.dataframe(pd.DataFrame({"file": found}), hide_index=True)


@st.cache_data(ttl=60, show_spinner=False, max_entries=4)
def problems(folder: str, number: int) -> list[str]:
    """Damage of the store, looked for again each minute and when a run comes or goes."""
    return store_problems(Path(folder)) if number else []


main()
