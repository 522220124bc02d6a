"""Which cells are the fastest of those that answer the same question, told only where the figures are apart."""

import pandas as pd

from workbench.analysis.verdict import MIN_EFFECT, NOISY_DEVICES, NOISY_EFFECT

GIVEN = (
    "engine", "device", "hardware", "model", "scope", "num_gpus", "nodes", "phase", "tokens_per_rank",
    "bytes_per_rank", "router", "skew", "data", "cache",
)  # fmt: skip
"""What is asked; all else that tells cells apart is a choice."""


def best_cells(cells: pd.DataFrame) -> pd.Series:
    """True for each ``ok`` cell that is faster than every other with the same question, on the index of ``cells``.

    Measured cells must be ahead by their whole 95% interval, simulated ones by their error band, and all by the
    minimum effect; on a cpu by 1.75x, and there precisions are never ranked. A cell that stands alone is not the best
    of anything.
    """
    best = pd.Series(False, index=cells.index)
    known = cells[(cells["status"] == "ok") & cells["latency_us"].notna()]
    if known.empty:
        return best
    keys = known[[name for name in GIVEN if name in known]].astype(object)
    noisy = known["device"].isin(NOISY_DEVICES) & (known["engine"] != "simulate")
    keys = keys.assign(ranked=known["precision"].where(noisy, "any"))
    for _, index in keys.fillna("-").groupby(list(keys.columns), sort=False).groups.items():
        group = known.loc[index]
        first = _first(group, noisy=bool(noisy.loc[index].any())) if len(group) > 1 else None
        if first is not None:
            best.loc[first] = True
    return best


def _first(group: pd.DataFrame, *, noisy: bool) -> object | None:
    """The index of the row that is ahead of all others, None when that cannot be told."""
    latency = group["latency_us"].astype(float)
    low, high = (
        group[f"latency_ci_{end}_us"].astype(float).fillna(group[f"band_{end}_us"].astype(float)).fillna(latency)
        for end in ("low", "high")
    )
    first = latency.idxmin()
    margin = 1 + (NOISY_EFFECT if noisy else MIN_EFFECT)
    others = low.drop(index=first)
    ahead = high[first] < others.min() and latency[first] * margin < latency.drop(index=first).min()
    return first if ahead else None
