"""Figures as people read them: three significant digits and a unit that fits."""

from typing import Any

import pandas as pd

TIME_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))
MISSING = "-"


def time_scale(largest_us: float) -> tuple[float, str]:
    """Divisor of microseconds and unit, for an axis whose largest value is ``largest_us``."""
    return _scale(largest_us, TIME_UNITS)


def byte_scale(largest: float) -> tuple[float, str]:
    """Divisor of bytes and unit (powers of 1000), for an axis whose largest value is ``largest``."""
    return _scale(largest, BYTE_UNITS)


def time_text(us: Any) -> str:
    """``4210`` becomes ``4.21 ms``; a missing value ``-``."""
    return _text(us, TIME_UNITS)


def bytes_text(number: Any) -> str:
    """``2_000_000`` becomes ``2 MB``."""
    return _text(number, BYTE_UNITS)


def percent_text(fraction: Any) -> str:
    return MISSING if pd.isna(fraction) else f"{float(fraction):.0%}"


def number_text(value: Any) -> str:
    """Three significant digits, thousands apart, no needless zeros."""
    if pd.isna(value):
        return MISSING
    number = float(value)
    if number == 0:
        return "0"
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def interval_text(low_us: Any, middle_us: Any, high_us: Any) -> str:
    """``4.21 ms (4.1-4.3)``: the median and its interval in one unit; without interval the median alone."""
    if pd.isna(middle_us) or pd.isna(low_us) or pd.isna(high_us):
        return time_text(middle_us)
    divisor, unit = time_scale(abs(float(middle_us)))
    low, middle, high = (number_text(float(value) / divisor) for value in (low_us, middle_us, high_us))
    return f"{middle} {unit} ({low}-{high})"


def _scale(largest: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((pair for pair in units if largest >= pair[0]), units[-1])


def _text(value: Any, units: tuple[tuple[float, str], ...]) -> str:
    if pd.isna(value):
        return MISSING
    divisor, unit = _scale(abs(float(value)), units)
    return f"{number_text(float(value) / divisor)} {unit}"
