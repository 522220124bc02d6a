"""A line of ``validate``: how far predictions lay from measurements that they were not made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

POINT_COLUMNS: dict[str, type] = {
    "section": str, "method": str, "split": str, "hardware": str, "kernel": str, "dtype": str, "tokens": int,
    "measured_us": float, "predicted_us": float, "band_low_us": float, "band_high_us": float,
}  # fmt: skip
"""Columns of the table ``validation``: one held-out measurement a row; what there is not is null."""


@dataclass(frozen=True, kw_only=True)
class ValidationRow:
    """Errors of one method on held-out measurements, percent of the measured time.

    ``median``, ``mape`` and ``p90`` are of the absolute error, ``bias`` is the median of the signed one (above zero:
    predicted too slow), ``coverage`` the percent of rows inside their 80% band. ``goal`` is the condition in words and
    ``met`` whether it holds; both None where there is none. ``held_out`` says what the predictions were not made from.
    ``points`` are the single predictions by POINT_COLUMNS, given by lines whose measurements no other line repeats.
    """

    section: str
    method: str
    split: str
    hardware: str = "all"
    dtype: str = "all"
    tokens: str = "all"
    count: int
    median: float | None = None
    mape: float | None = None
    p90: float | None = None
    bias: float | None = None
    coverage: float | None = None
    goal: str | None = None
    met: bool | None = None
    held_out: str = ""
    points: tuple[dict[str, Any], ...] = ()


def error_figures(
    measured: Sequence[float], predicted: Sequence[float], *, low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """``count``, ``median``, ``mape``, ``p90``, ``bias`` and ``coverage``, as the fields of ValidationRow."""
    true = np.asarray(measured, float)
    if not true.size:
        return {"count": 0}
    signed = 100 * (np.asarray(predicted, float) / true - 1)
    size = np.abs(signed)
    figures = {
        "count": true.size,
        "median": float(np.median(size)),
        "mape": float(size.mean()),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(np.median(signed)),
    }
    if low is None or high is None:
        return figures
    lows, highs = np.asarray(low, float), np.asarray(high, float)
    banded = np.isfinite(lows) & np.isfinite(highs)
    inside = (lows <= true) & (true <= highs)
    return figures | {"coverage": float(100 * inside[banded].mean()) if banded.any() else None}
