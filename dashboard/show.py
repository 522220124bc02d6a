"""How pages show things: the answer in words, then figures under their questions."""

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard.choices import View, choose_view
from dashboard.data import figure, findings, loads
from workbench.report.figures import FIGURES
from workbench.spec.load_metrics import DEFINITIONS, definition_lines

STATUS_COLORS = {"ok": "green", "unsupported": "orange", "infeasible": "orange", "error": "red"}
TEXT_COLORS = {"dark": "#d0d0d0", "light": "#404040"}


def open_page(title: str, question: str) -> View | None:
    """The head of a page and the view that was chosen for it, None without any run."""
    st.title(title)
    aside(question)
    return choose_view()


def aside(text: str) -> None:
    """A small line; the grey of Streamlit's captions is too pale to read."""
    st.markdown(f":small[{text}]")


def show_counts(cells: pd.DataFrame) -> None:
    """A badge for each status."""
    counts = cells["status"].value_counts()
    badges = [
        f":{color}-badge[{counts[status]} {status}]" for status, color in STATUS_COLORS.items() if status in counts
    ]
    st.markdown(" ".join(badges) or "no cell has finished yet")


def show_findings(view: View, *, about: tuple[str, ...] = ()) -> None:
    """The summary of the chosen cells; ``about`` keeps the sentences that start with one of its words."""
    told = [
        (finding.head, kept)
        for finding in findings(view.info.path, view.changed, view.chosen)
        if (kept := [line for line in finding.sentences if not about or line.startswith(about)])
    ]
    if not told:
        return
    with st.container(border=True):
        for head, lines in told:
            st.markdown(f"**{plain(head)}**")
            st.markdown("\n".join(f"- {plain(line)}" for line in lines))


def show_figure(name: str, view: View, *, cell: str | None = None) -> None:
    """A figure of the report under its title and question, if it is of use for the chosen cells."""
    if FIGURES[name].suits(view.cells):
        draw(name, figure(name, view.info.path, view.changed, view.chosen, cell))


def draw(name: str, drawing: go.Figure) -> None:
    """A figure under its title and question, in colours of the page's theme."""
    spec = FIGURES[name]
    st.subheader(spec.title, anchor=name.replace("_", "-"))
    aside(spec.question)
    drawing.update_layout(font_color=TEXT_COLORS.get(st.context.theme.type or ""))
    st.plotly_chart(drawing, key=f"figure_{name}", config={"displaylogo": False}, alt=f"{spec.title}: {spec.question}")


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
