"""Routing and dispatch: what the all-to-all costs, what crosses which link, and how uneven the traffic is."""

import streamlit as st

from dashboard.choices import choose_view
from dashboard.show import show_figure, show_findings, show_loads

ABOUT = ("dispatch strategy", "skew", "communication", "Times of this processor")


def main() -> None:
    view = choose_view()
    if view is None:
        return
    st.title("Routing and dispatch")
    st.caption("Which dispatch wins on this network, how much of the layer it eats, and what skew costs.")
    show_findings(view, about=ABOUT)
    for name in ("comm_share", "message_size", "links", "stages", "loads"):
        show_figure(name, view)
    show_loads(view)
    show_figure("memory", view)


main()
