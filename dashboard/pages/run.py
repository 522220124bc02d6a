"""Run: how a run went, what it says in words and at a glance, every cell, the conditions; and starting one."""

import pandas as pd
import streamlit as st

from dashboard.choices import View, choose_view
from dashboard.control import stop
from dashboard.scenario_form import show_form
from dashboard.show import aside, plain, show_counts, show_figure, show_findings
from workbench.analysis.columns import DESCRIBING, settings
from workbench.report.conditions import condition_groups, group_title
from workbench.report.html import flat_items, report_html
from workbench.report.notes import flag_texts
from workbench.store.exporters import csv_bytes
from workbench.store.progress import read_events

FOLLOW_S = 2.0
COLUMNS = {
    "num_gpus": st.column_config.NumberColumn("GPUs"),
    "tokens_per_rank": st.column_config.NumberColumn("tokens per rank"),
    "strategy": st.column_config.TextColumn("dispatch"),
    "latency_us": st.column_config.NumberColumn("latency (us)", format="%.4g"),
    "latency_ci_low_us": st.column_config.NumberColumn("95% low", format="%.4g"),
    "latency_ci_high_us": st.column_config.NumberColumn("95% high", format="%.4g"),
    "rel_error": st.column_config.NumberColumn("rel. error", format="%.3g"),
    "comm_fraction": st.column_config.NumberColumn("communication", format="percent"),
    "scale_out_bytes": st.column_config.NumberColumn("scale-out", format="bytes"),
    "load_max_over_mean": st.column_config.NumberColumn("hottest / mean", format="%.3g"),
    "peak_memory_bytes": st.column_config.NumberColumn("memory", format="bytes"),
    "math_path": st.column_config.TextColumn("math"),
}


def main() -> None:
    heading = st.empty()
    view = choose_view()
    heading.title("Run" if view is None else plain(view.info.name))
    if view is not None:
        aside(f"Run `{view.info.run_id}`, {view.info.status}")
        if view.info.status == "running":
            follow(view)
            show_stop(view)
        show_counts(view.cells)
        show_findings(view)
        show_figure("latency", view)
        show_cells(view.cells)
        show_conditions(view)
    show_form()


@st.fragment(run_every=FOLLOW_S)
def follow(view: View) -> None:
    """Progress of a run that is still going; the page reads it again when it ends."""
    events, _ = read_events(view.run.progress_path)
    cells = [event for event in events if event.get("event") == "cell"]
    last = cells[-1] if cells else {}
    done, total = last.get("done") or 0, last.get("total") or view.info.total or 0
    eta = f", about {last['eta_s']:.0f} s left" if last.get("eta_s") else ""
    st.progress(min(done / total, 1.0) if total else 0.0, text=f"{done} of {total or '?'} cells{eta}")
    if events and events[-1].get("event") == "run_end":
        st.rerun()


def show_stop(view: View) -> None:
    if st.button("Stop this run"):
        fault = stop(view.run.path)
        if fault:
            st.error(fault)
        else:
            st.success("Stopped; what is done stays.")


def show_cells(cells: pd.DataFrame) -> None:
    """A table for each engine and device, as in the terminal."""
    st.subheader("Cells")
    for key, group in condition_groups(cells):
        title, note = group_title(group)
        st.markdown(f"**{plain(title)}**" + (f"  \n*{plain(note)}*" if note else ""))
        figures = [name for name in COLUMNS if name not in DESCRIBING and group[name].notna().any()]
        reasons = ["status", "reason"] if (group["status"] != "ok").any() else []
        shown = pd.concat([settings(group), group[[*reasons, *figures]]], axis=1)
        if reasons:
            shown["reason"] = shown["reason"].fillna("")
        if group["flags"].notna().any():
            shown["notes"] = ["; ".join(flag_texts(flags)) for flags in group["flags"]]
        st.dataframe(shown, hide_index=True, column_config=COLUMNS, key=f"cells_{'_'.join(key)}")


def show_conditions(view: View) -> None:
    """Machine, versions, scenario; and the files to take along."""
    with st.expander("Conditions and scenario"):
        manifest = view.run.manifest()
        st.code(str(manifest.pop("scenario_text", "") or "no scenario text kept"), language=None)
        st.dataframe(pd.DataFrame(flat_items(manifest), columns=["what", "value"]), hide_index=True)
    left, right = st.columns(2)
    left.download_button("Report (HTML)", lambda: report_html(view.run), f"{view.run.run_id}.html", "text/html")
    right.download_button(
        "Cells (CSV)", lambda: csv_bytes(view.run, table="cells"), f"{view.run.run_id}.csv", "text/csv"
    )


main()
