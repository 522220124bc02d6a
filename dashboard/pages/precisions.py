"""Precisions: what each gains over bf16, how sure that is, and what error it costs."""

import streamlit as st

from dashboard.choices import choose_view
from dashboard.show import show_figure, show_findings

ABOUT = ("precision", "Relative error", "Times of this processor")


def main() -> None:
    view = choose_view()
    if view is None:
        return
    st.title("Precisions")
    st.caption("Which precision is fastest for this layer here, and at what numerical error?")
    show_findings(view, about=ABOUT)
    for name in ("speedup", "error_latency", "latency"):
        show_figure(name, view)


main()
