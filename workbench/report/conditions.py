"""Under which conditions rows may stand together, and how to say so. CPU and GPU, measured and simulated stay apart."""

from collections.abc import Iterator

import pandas as pd

APART = ("engine", "device", "hardware")
ENGINE_WORDS = {"measure": "measured", "simulate": "simulated", "hybrid": "hybrid (measured compute, priced network)"}
CPU_NOTE = "Times of this processor: they say nothing about how precisions rank on a GPU."


def condition_groups(cells: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Parts of ``cells`` whose times may share an axis, in order of appearance."""
    keys = cells[list(APART)].astype(object).where(cells[list(APART)].notna(), "-")
    for key, index in keys.groupby(list(APART), sort=False).groups.items():
        yield tuple(map(str, key)), cells.loc[index]


def group_title(cells: pd.DataFrame) -> tuple[str, str]:
    """One line of conditions for a group, and a warning that belongs to it (empty without one)."""
    first = cells.iloc[0]
    words = [ENGINE_WORDS.get(first["engine"], str(first["engine"]))]
    words.append(("for " if first["engine"] == "simulate" else "on ") + str(first["hardware"]))
    methods = [method for method in cells["method"].dropna().unique() if method != "measured"]
    if methods:
        words.append(f"method {', '.join(methods)}")
    words += [spread_words(cells)]
    return ", ".join(word for word in words if word), CPU_NOTE if is_measured_cpu(cells) else ""


def spread_words(cells: pd.DataFrame) -> str:
    """How sure the times are: samples and interval, or the error band of a simulation."""
    if (cells["engine"] == "simulate").all():
        bands = cells["error_band_pct"].dropna()
        return f"error band {bands.max():.0f}%" if len(bands) else "no error band established yet"
    counts = cells["num_samples"].dropna()
    if counts.empty:
        return ""
    few, many = int(counts.min()), int(counts.max())
    number = f"{few}" if few == many else f"{few} to {many}"
    return f"median of {number} samples of the slowest rank"


def is_measured_cpu(cells: pd.DataFrame) -> bool:
    return bool(((cells["device"] == "cpu") & (cells["engine"] != "simulate")).any())
