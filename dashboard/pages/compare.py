"""Compare runs: two sides of one or more runs each, a verdict for every cell that both have."""

import pandas as pd
import streamlit as st

from dashboard.choices import run_label, show_empty
from dashboard.data import find_runs, run_at, stamp
from dashboard.remembered import choose_some
from dashboard.show import aside, draw
from workbench.analysis.compare import RunTables, compare_runs
from workbench.report.figures import FIGURES
from workbench.store.merge import pool
from workbench.store.reader import to_frame

WORDS = ("faster", "slower", "same", "unclear")
COLUMNS = {
    "baseline_us": st.column_config.NumberColumn("before (us)", format="%.4g"),
    "candidate_us": st.column_config.NumberColumn("now (us)", format="%.4g"),
    "ratio": st.column_config.NumberColumn("time ratio", format="%.3f"),
    "ratio_low": st.column_config.NumberColumn("95% low", format="%.3f"),
    "ratio_high": st.column_config.NumberColumn("95% high", format="%.3f"),
    "q_value": st.column_config.NumberColumn("q", format="%.3g"),
    "repeats": st.column_config.NumberColumn("repeats a side"),
}
HIDDEN = ("baseline_cell", "candidate_cell", "judged_by", "p_value", "spread")


def main() -> None:
    st.title("Compare runs")
    aside("Several runs on a side are repeats of one another; a verdict needs two repeats on each.")
    runs = find_runs()
    if not runs.infos:
        show_empty(runs)
        return
    infos = {info.run_id: info for info in reversed(runs.infos)}
    labels = {run_id: run_label(info) for run_id, info in infos.items()}
    newest = list(infos)
    before = choose_some("before", "Before", newest, show=labels.__getitem__, none="choose runs", default=newest[1:2])
    after = choose_some("after", "Now", newest, show=labels.__getitem__, none="choose runs", default=newest[:1])
    if not before or not after:
        st.info("Choose a run on each side. With one run here, make another: moe-workbench run quickstart")
        return
    try:
        sides = [tuple((infos[run].path, stamp(infos[run].path)) for run in side) for side in (before, after)]
        verdicts = compared(*sides)
    except ValueError as fault:
        st.error(str(fault))
        return
    show_verdicts(verdicts)


def show_verdicts(verdicts: pd.DataFrame) -> None:
    """Counts, filters, the figure and the table."""
    counts = verdicts["verdict"].value_counts()
    st.markdown(", ".join(f"**{counts.get(word, 0)}** {word}" for word in WORDS) + f" of {len(verdicts)} cells")
    left, right = st.columns(2)
    words = choose_some("verdict", "Verdict", list(WORDS), where=left)
    parts = list(dict.fromkeys(verdicts["hardware"].dropna().astype(str)))
    hardware = choose_some("on", "Hardware", parts, where=right)
    kept = verdicts[verdicts["verdict"].isin(words or WORDS) & verdicts["hardware"].astype(str).isin(hardware or parts)]
    draw("comparison", FIGURES["comparison"].build(kept, {"comparison": kept}))
    shown = kept.drop(columns=list(HIDDEN))
    st.dataframe(shown, hide_index=True, column_config=COLUMNS, key="verdicts")
    st.download_button("Verdicts (CSV)", lambda: kept.to_csv(index=False), "verdicts.csv", "text/csv")


Side = tuple[tuple[str, float], ...]


@st.cache_data(show_spinner="Comparing", max_entries=8)
def compared(before: Side, after: Side) -> pd.DataFrame:
    """``compare_runs`` of two sides, each the paths of its runs with the stamps of their files."""
    old, new = ([run_at(path) for path, _ in side] for side in (before, after))
    return compare_runs(_tables(old), _tables(new))


def _tables(runs: list) -> RunTables:
    pooled = pool(runs, tables=("cells", "samples")).tables
    return RunTables(cells=to_frame(pooled["cells"]), samples=to_frame(pooled["samples"]))


main()
