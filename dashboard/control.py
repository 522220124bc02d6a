"""Starting and stopping runs, through the command line as a person would."""

import json
import subprocess
import sys
from pathlib import Path

import streamlit as st

from dashboard.choices import pick_run
from dashboard.data import results_folder

WAIT_S = 120


def show_start() -> None:
    """A form that starts a scenario in the background and turns to its run."""
    with st.expander("Start a run"), st.form("start", border=False):
        scenario = st.text_input("Scenario", "quickstart", help="A suite's name or the path of a scenario file.")
        if st.form_submit_button("Start") and scenario.strip():
            options = ["--results", str(results_folder()), "--detach", "--format", "json"]
            done = _command("run", *options, "--", scenario.strip())
            if done.returncode:
                st.error(done.stderr or done.stdout)
            else:
                pick_run(json.loads(done.stdout)["run_id"])
                st.rerun()


def show_stop(run: Path) -> None:
    """A button that stops a running run; what is done stays."""
    if st.button("Stop this run"):
        done = _command("stop", "--results", str(run.parent), "--", str(run))
        (st.error if done.returncode else st.success)(done.stderr or done.stdout)


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "workbench.cli.main", *arguments]
    return subprocess.run(line, capture_output=True, text=True, encoding="utf-8", timeout=WAIT_S, check=False)
