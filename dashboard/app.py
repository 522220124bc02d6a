"""The app: its pages over one side bar. Start it with ``moe-workbench dashboard``."""

import streamlit as st

PAGES = ("home", "run", "precisions", "routing", "dispatch", "scaling", "timeline", "memory", "roofline", "compare",
         "validation", "data")  # fmt: skip
TITLES = {"routing": "Routing and balance", "compare": "Compare runs"}


def main() -> None:
    st.set_page_config(page_title="MoE workbench", layout="wide")
    pages = [
        st.Page(f"pages/{name}.py", title=TITLES.get(name, name.capitalize()), default=name == PAGES[0])
        for name in PAGES
    ]
    st.navigation(pages, expanded=True).run()


main()
