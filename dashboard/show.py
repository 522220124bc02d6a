"""How pages show things: the answer in words, then figures under their questions."""

import pandas as pd
import streamlit as st

from dashboard.choices import View
from dashboard.data import figure, findings, loads
from workbench.report.figures import FIGURES
from workbench.spec.load_metrics import DEFINITIONS, definition_lines

STATUS_COLORS = {"ok": "green", "unsupported": "orange", "infeasible": "orange", "error": "red"}
TEXT_COLORS = {"dark": "#d0d0d0", "light": "#404040"}


def show_counts(cells: pd.DataFrame) -> None:
    """A badge for each status."""
    counts = cells["status"].value_counts()
    badges = [
        f":{color}-badge[{counts[status]} {status}]" for status, color in STATUS_COLORS.items() if status in counts
    ]
    st.markdown(" ".join(badges) or "no cell has finished yet")


def show_findings(view: View, *, about: tuple[str, ...] = ()) -> None:
    """The summary of the chosen cells; ``about`` keeps the sentences that start with one of its words."""
    with st.container(border=True):
        for finding in findings(view.info.path, view.changed, view.chosen):
            kept = [line for line in finding.sentences if not about or line.startswith(about)]
            if kept:
                st.markdown(f"**{plain(finding.head)}**")
                st.markdown("\n".join(f"- {plain(line)}" for line in kept))


def show_figure(name: str, view: View) -> None:
    """A figure of the report under its title and question, if it is of use for the chosen cells."""
    spec = FIGURES[name]
    if not spec.suits(view.cells):
        return
    st.subheader(spec.title, anchor=name.replace("_", "-"))
    st.caption(spec.question)
    drawing = figure(name, view.info.path, view.changed, view.chosen)
    drawing.update_layout(font_color=TEXT_COLORS.get(st.context.theme.type or ""))
    st.plotly_chart(drawing, key=f"figure_{name}", config={"displaylogo": False})


def show_loads(view: View) -> None:
    """How even the loads were, in figures with their definitions below."""
    figures = loads(view.info.path, view.changed, view.chosen)
    if figures.empty:
        return
    titles = {name: definition.title for name, definition in DEFINITIONS.items()}
    table = figures.drop(columns="cell_id").rename(columns={"level": "counted", "count": "N"} | titles)
    st.dataframe(table, hide_index=True, column_config={
        title: st.column_config.NumberColumn(title, format="%.3g", help=plain(DEFINITIONS[name].formula))
        for name, title in titles.items()
    })  # fmt: skip
    with st.expander("What these figures are"):
        st.markdown("\n".join(f"- {plain(line)}" for line in definition_lines(figures["level"].unique())))


def plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>#$~|:" else character for character in text)
