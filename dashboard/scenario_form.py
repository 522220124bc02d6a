"""Picking or editing a scenario: checked as it changes, with what it would take, and a button that starts it."""

import streamlit as st

from dashboard.choices import pick_run
from dashboard.control import packed, plan, start, unpacked
from dashboard.remembered import choose_one, forget_address, key, remember, remembered
from dashboard.show import aside
from workbench.report.units import bytes_text, time_text
from workbench.spec.catalog import describe, names, suite_path

DEFAULT = "quickstart"
EDIT = "edit"


def show_form() -> None:
    """The form, then what ``plan`` says of it; the edited text stands in the address too."""
    st.subheader("Start a run", anchor="start")
    suites = list(names("suites"))
    suite = choose_one("suite", "Suite", suites, default=DEFAULT, help="What to run, or to start editing from.")
    aside(describe("suites", suite))
    own = suite_path(suite).read_text(encoding="utf-8")
    text = _edited(suite, own)
    slot = st.container()
    answer = plan(suite, text)
    with slot:
        if answer.fault:
            st.error(answer.fault)
        else:
            st.success(plan_words(answer.told))
        if st.button("Start", type="primary", disabled=bool(answer.fault)):
            with st.spinner("Starting"):
                started = start(suite, text)
            if started.fault:
                st.error(started.fault)
            else:
                pick_run(started.told["run_id"])
                st.rerun()


def plan_words(told: dict) -> str:
    """Cells, engines, memory and time of a plan in one line."""
    cells = told["cells"]
    engines = ", ".join(
        f"{number} {name}" for name in ("measure", "simulate", "hybrid")
        if (number := sum(cell["engine"] == name for cell in cells))
    )  # fmt: skip
    short = [cell for cell in cells if cell["fits"] is False]
    needs = max((cell["needed_bytes"] or 0 for cell in cells), default=0)
    fit = f"{len(short)} cells do not fit in memory" if short else "all fit in memory"
    most = f"the fullest GPU needs {bytes_text(needs)}" if needs else "no model to hold"
    time = time_text(1e6 * told["estimated_s"])
    return f"{told['count']} cells ({engines}); {fit}, {most}; at most about {time}."


def _edited(suite: str, own: str) -> str | None:
    """The text of the editor where it differs from the suite's own."""
    if st.session_state.get("edited_suite", suite) != suite:
        st.session_state.pop(key(EDIT), None)
        remember(EDIT, [])
    st.session_state["edited_suite"] = suite
    if key(EDIT) not in st.session_state:
        said = next(iter(remembered(EDIT)), None)
        st.session_state[key(EDIT)] = (unpacked(said) if said else None) or own
    with st.expander("Edit the scenario", expanded=st.session_state[key(EDIT)] != own):
        text = st.text_area("Scenario (YAML)", key=key(EDIT), height=320, help="Checked when you leave the field.")
    if text == own:
        remember(EDIT, [])
        return None
    code = packed(text)
    remember(EDIT, [code] if code else [])
    if code is None:
        forget_address(EDIT)
        aside("Too long for the page's address: a link opens the suite unedited. Keep it as a file.")
    return text
