"""Held-out predictions as lines of ``validate``, and the bands that they are judged by, themselves held out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.run.fit_constants import FEWEST_FOR_BAND, QUANTILES, band_of_splits, measured_over_predicted
from workbench.simulate.published_moe import FAMILY
from workbench.spec.validation import POINT_COLUMNS, ValidationRow, error_figures

TOKEN_RANGES = {"1-16": (1, 16), "17-128": (17, 128), "129-1024": (129, 1024), "above 1024": (1025, 10**12)}
Goals = dict[str, float | tuple[float, float]]
"""Figure of a line to its largest value, or to the range it must lie in."""


def band_of_other_splits(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the band made of all rows with another ``split``, however few the splits are."""
    frame = frame.reset_index(drop=True)
    band = np.full((len(frame), 2), np.nan)
    for name, at in frame.groupby("split").indices.items():
        others = frame[frame["split"] != name]
        if len(others):
            band[at] = band_of_splits(others)
    return _with_band(frame, band)


def band_of_others(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the band of each row's family, made of its rows with another ``split``; of all families' such rows
    where they are few."""
    frame = frame.reset_index(drop=True)
    ratio, split = measured_over_predicted(frame).to_numpy(), frame["split"].to_numpy()
    band = np.full((len(frame), 2), np.nan)
    for at in frame.groupby(list(FAMILY), dropna=False).indices.values():
        for name in np.unique(split[at]):
            mine, others = at[split[at] == name], at[split[at] != name]
            pool = ratio[others] if len(others) >= FEWEST_FOR_BAND else ratio[split != name]
            if len(pool):
                band[mine] = np.quantile(pool, QUANTILES)
    return _with_band(frame, band)


def band_of_other_families(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the band made of all rows of the kernel's other families."""
    frame = frame.reset_index(drop=True)
    ratio, band = measured_over_predicted(frame).to_numpy(), np.full((len(frame), 2), np.nan)
    for family, at in frame.groupby(list(FAMILY), dropna=False).indices.items():
        others = np.array(frame["kernel"] == family[1])
        others[at] = False
        if others.any():
            band[at] = np.quantile(ratio[others], QUANTILES)
    return _with_band(frame, band)


def with_band(frame: pd.DataFrame, low: float, high: float) -> pd.DataFrame:
    """``frame`` with one band for every row."""
    return _with_band(frame, np.tile([low, high], (len(frame), 1)))


def _with_band(frame: pd.DataFrame, band: np.ndarray) -> pd.DataFrame:
    low, high = frame["predicted_us"] * band[:, 0], frame["predicted_us"] * band[:, 1]
    return frame.assign(band_low_us=low, band_high_us=high)


def line(
    frame: pd.DataFrame, *, goals: Goals | None = None, points: bool = False, predicted: str = "predicted_us",
    **fields: Any,
) -> ValidationRow:  # fmt: skip
    """One line over all rows of ``frame``; ``fields`` are those of ValidationRow that it cannot know."""
    bands = {}
    if predicted == "predicted_us" and "band_low_us" in frame:
        bands = {"low": frame["band_low_us"], "high": frame["band_high_us"]}
    figures = error_figures(frame["us"], frame[predicted], **bands)
    if goals:
        figures |= {"goal": "; ".join(_said(*goal) for goal in goals.items()), "met": _met(goals, figures)}
    found = _points(frame, fields) if points else ()
    return ValidationRow(**fields, **figures, points=found)


def breakdown(frame: pd.DataFrame, **fields: Any) -> list[ValidationRow]:
    """A line per hardware, dtype and token range, with the points; and before them one per token range."""
    lines = [line(part, tokens=name, **fields) for name, part in by_tokens(frame)]
    for (hardware, dtype), mine in frame.groupby(["hardware", "dtype"]):
        known = fields | {"hardware": hardware, "dtype": dtype}
        lines += [line(part, tokens=name, points=True, **known) for name, part in by_tokens(mine)]
    return lines


def by_tokens(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each token range that has any."""
    parts = [(name, frame[frame["tokens"].between(low, high)]) for name, (low, high) in TOKEN_RANGES.items()]
    return [(name, part) for name, part in parts if len(part)]


def _points(frame: pd.DataFrame, fields: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    table = frame.rename(columns={"us": "measured_us"})
    for name in ("section", "method", "split"):
        table = table.assign(**{name: fields[name]})
    return tuple(table.reindex(columns=list(POINT_COLUMNS)).to_dict("records"))


def _said(name: str, limit: float | Sequence[float]) -> str:
    shown = name if name != "mape" else "MAPE"
    if isinstance(limit, tuple):
        return f"{shown} {limit[0]:g} to {limit[1]:g}%"
    return f"{shown} <= {limit:g}%"


def _met(goals: Goals, figures: dict[str, Any]) -> bool:
    for name, limit in goals.items():
        value, (low, high) = figures.get(name), limit if isinstance(limit, tuple) else (0.0, limit)
        if value is None or not low <= value <= high:
            return False
    return True
