"""The app: three pages over one side bar. Start it with ``moe-workbench dashboard``."""

import streamlit as st

PAGES = (
    st.Page("pages/runs.py", title="Runs", default=True),
    st.Page("pages/precisions.py", title="Precisions"),
    st.Page("pages/routing_and_dispatch.py", title="Routing and dispatch"),
)

st.set_page_config(page_title="MoE workbench", layout="wide")
st.navigation(list(PAGES)).run()
