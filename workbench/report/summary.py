"""What a run says, in sentences made from its numbers: what wins, by how much, how sure, and what was not run."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from workbench.analysis.columns import planned_cells
from workbench.analysis.compare import among, compare_by
from workbench.analysis.verdict import MIN_EFFECT
from workbench.report.conditions import condition_groups, group_title
from workbench.report.notes import FLAG_WORDS, GRAVE, flag_names
from workbench.report.units import number_text, percent_text

AXES = {"precision": "precision", "dispatch.strategy": "dispatch strategy", "workload.skew": "skew"}
WORDS = ("faster", "slower", "same", "unclear")


@dataclass(frozen=True)
class Finding:
    """What one part of a run says; ``head`` names the conditions, ``sentences`` are plain text."""

    head: str
    sentences: tuple[str, ...]


def summarise(
    cells: pd.DataFrame, samples: pd.DataFrame, *, pairs: Callable[[str], pd.DataFrame] | None = None
) -> list[Finding]:
    """Findings for people: one for each engine and device, then what holds over all cells.

    ``pairs`` gives the frame of compare_by for a path where it is known already, of these cells and maybe others.
    """
    if cells.empty:
        return [Finding("All cells", ("No cell has finished yet.",))]
    findings = []
    for _, group in condition_groups(cells[cells["status"] == "ok"]):
        title, note = group_title(group)
        found = [sentence for path in AXES for sentence in _winners(group, samples, path, pairs)]
        found += _communication(group)
        if found:
            findings.append(Finding(title, (*found, *([note] if note else []))))
    return [*findings, Finding("All cells", (_counts(cells), *_errors(cells), *_flagged(cells), *_not_ok(cells)))]


def _counts(cells: pd.DataFrame) -> str:
    counts = cells["status"].value_counts()
    parts = [
        f"{counts[status]} {status}" for status in ("ok", "unsupported", "infeasible", "error") if status in counts
    ]
    return f"{len(cells)} cell{'s' * (len(cells) > 1)}: {', '.join(parts)}."


def _winners(
    cells: pd.DataFrame, samples: pd.DataFrame, path: str, known: Callable[[str], pd.DataFrame] | None
) -> list[str]:
    """How the values of one path did against its baseline, best first."""
    planned = planned_cells(cells)
    if len(cells) < 2 or not all(planned):
        return []
    pairs = compare_by(cells, samples, by=path) if known is None else among(known(path), cells)
    pairs = pairs.dropna(subset=["ratio"])
    if pairs.empty:
        return []
    ranked = [(mine["ratio"].median(), *key, mine) for key, mine in pairs.groupby(["candidate", "baseline"])]
    ranked.sort(key=lambda part: (round(part[0], 2), -(part[3]["verdict"] == "faster").mean()))
    parts = [_candidate(*part) for part in ranked]
    return [f"{AXES[path]}: {_lead(pairs)}; {'; '.join(parts)}."]


def _lead(pairs: pd.DataFrame) -> str:
    """Who wins in how many settings, if anyone does in most of them."""
    settings = [mine for _, mine in pairs.groupby("baseline_cell", sort=False)]
    wins = pd.Series([winner for winner in map(_winner, settings) if winner], dtype=object).value_counts()
    if len(wins) and wins.iloc[0] == len(settings):
        return f"{wins.index[0]} is fastest"
    if not len(wins) or wins.sum() <= len(settings) / 2:
        return "no clear winner"
    told = [f"{name} in {count}" for name, count in wins.items()]
    return f"fastest of {len(settings)} settings: {', '.join(told)}"


def _winner(mine: pd.DataFrame) -> str | None:
    """The fastest of one setting, None when two are too close to tell."""
    if (mine["verdict"] == "slower").all():
        return str(mine["baseline"].iloc[0])
    best, *others = mine.sort_values("ratio").to_dict("records")
    if best["verdict"] != "faster":
        return None
    high = best["ratio"] if pd.isna(best["ratio_high"]) else best["ratio_high"]
    lows = [other["ratio"] if pd.isna(other["ratio_low"]) else other["ratio_low"] for other in others]
    return None if any(low < high * (1 + MIN_EFFECT) for low in lows) else str(best["candidate"])


def _candidate(ratio: float, candidate: str, baseline: str, mine: pd.DataFrame) -> str:
    low, high = f"{mine['ratio'].min():.2f}", f"{mine['ratio'].max():.2f}"
    span = f" ({low} to {high})" if low != high else ""
    counts = mine["verdict"].value_counts()
    words = ", ".join(f"{word} in {counts[word]} of {len(mine)}" for word in WORDS if word in counts)
    return f"{candidate} takes {ratio:.2f}x the time of {baseline}{span}, {words}"


def _communication(cells: pd.DataFrame) -> list[str]:
    known = cells.dropna(subset=["comm_fraction"])
    known = known[known["comm_fraction"] > 0]
    if known.empty:
        return []
    least, most = known.loc[known["comm_fraction"].idxmin()], known.loc[known["comm_fraction"].idxmax()]
    if len(known) == 1 or percent_text(least["comm_fraction"]) == percent_text(most["comm_fraction"]):
        return [f"communication: {percent_text(most['comm_fraction'])} of the layer."]
    ends = [
        f"{percent_text(row['comm_fraction'])} ({row['num_gpus']} ranks, {row['strategy']})" for row in (least, most)
    ]
    return [f"communication: {ends[0]} to {ends[1]} of the layer."]


def _errors(cells: pd.DataFrame) -> list[str]:
    known = cells.dropna(subset=["rel_error"])
    if known.empty:
        return []
    medians = known.groupby("precision")["rel_error"].median().sort_values()
    parts = [f"{name} {number_text(value)}" for name, value in medians.items()]
    return [f"Relative error against float32 (median over cells): {', '.join(parts)}."]


def _flagged(cells: pd.DataFrame) -> list[str]:
    names = [flag_names(flags) for flags in cells["flags"]]
    counts = {flag: sum(flag in row for row in names) for flag in GRAVE}
    return [f"{count} of {len(cells)} cells: {FLAG_WORDS[flag]}." for flag, count in counts.items() if count]


def _not_ok(cells: pd.DataFrame) -> list[str]:
    failed = cells[cells["status"] != "ok"].assign(reason=lambda frame: frame["reason"].fillna("no reason given"))
    groups = failed.groupby(["status", "reason"], sort=False).size()
    return [f"{count} {status}: {reason}." for (status, reason), count in groups.items()]
