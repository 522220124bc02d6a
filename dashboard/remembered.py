"""Choices that stand in the page's address, so that a link opens the same view, and outlive a change of page."""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def choose_one(
    name: str, label: str, options: Sequence[str], *, show: Callable[[str], str] = str, default: str | None = None,
    where: DeltaGenerator | None = None, help: str | None = None,
) -> str:  # fmt: skip
    """A choice among ``options``, kept under ``name``; one that is not among them falls back to the default."""
    wanted = [value for value in remembered(name) if value in options]
    fallback = default if default in options else options[0]
    st.session_state[key(name)] = wanted[0] if wanted else fallback
    chosen = (where or st).selectbox(label, options, key=key(name), format_func=show, help=help)
    remember(name, [] if chosen == fallback and default is not None else [chosen])
    return chosen


def choose_some(
    name: str, label: str, options: Sequence[str], *, show: Callable[[str], str] = str, none: str = "all",
    where: DeltaGenerator | None = None, default: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Any number of ``options``, kept under ``name``; ``none`` says what choosing nothing means."""
    wanted = [value for value in remembered(name) if value in options]
    st.session_state[key(name)] = wanted or [value for value in default if value in options]
    picked = (where or st).multiselect(label, options, key=key(name), format_func=show, placeholder=none)
    remember(name, picked)
    return picked


def remembered(name: str) -> list[str]:
    """What the widget holds now, else what the address says, else what this session chose on another page."""
    if key(name) in st.session_state:
        now: Any = st.session_state[key(name)]
        return [now] if isinstance(now, str) else list(now)
    said = st.query_params.get_all(name)
    return said or st.session_state.setdefault("choices", {}).get(name, [])


def remember(name: str, values: Sequence[str]) -> None:
    """Keep a choice for other pages and in the address; an empty one leaves it."""
    st.session_state.setdefault("choices", {})[name] = list(values)
    if values:
        st.query_params[name] = list(values)
    else:
        forget_address(name)


def forget_address(name: str) -> None:
    if name in st.query_params:
        del st.query_params[name]


def key(name: str) -> str:
    return f"choice_{name}"
