"""What a run says, in sentences made from its numbers: what wins, by how much, how sure, and what was not run."""

from dataclasses import dataclass

import pandas as pd

from workbench.analysis.columns import planned_cells
from workbench.analysis.compare import compare_by
from workbench.report.conditions import condition_groups, group_title
from workbench.report.units import number_text, percent_text

AXES = {"precision": "precision", "dispatch.strategy": "dispatch strategy", "workload.skew": "skew"}
WORDS = ("faster", "slower", "same", "unclear")


@dataclass(frozen=True)
class Finding:
    """What one part of a run says; ``head`` names the conditions, ``sentences`` are plain text."""

    head: str
    sentences: tuple[str, ...]


def summarise(cells: pd.DataFrame, samples: pd.DataFrame) -> list[Finding]:
    """Findings for people: one for each engine and device, then what holds over all cells."""
    if cells.empty:
        return [Finding("All cells", ("No cell has finished yet.",))]
    findings = []
    for _, group in condition_groups(cells[cells["status"] == "ok"]):
        title, note = group_title(group)
        found = [sentence for path in AXES for sentence in _winners(group, samples, path)]
        found += _communication(group)
        if found:
            findings.append(Finding(title, (*found, *([note] if note else []))))
    return [*findings, Finding("All cells", (_counts(cells), *_errors(cells), *_not_ok(cells)))]


def _counts(cells: pd.DataFrame) -> str:
    counts = cells["status"].value_counts()
    parts = [
        f"{counts[status]} {status}" for status in ("ok", "unsupported", "infeasible", "error") if status in counts
    ]
    return f"{len(cells)} cell{'s' * (len(cells) > 1)}: {', '.join(parts)}."


def _winners(cells: pd.DataFrame, samples: pd.DataFrame, path: str) -> list[str]:
    """How the values of one path did against its baseline, best first."""
    planned = planned_cells(cells)
    if len(cells) < 2 or not all(planned):
        return []
    pairs = compare_by(cells, samples, by=path).dropna(subset=["ratio"])
    if pairs.empty:
        return []
    ranked = [(mine["ratio"].median(), *key, mine) for key, mine in pairs.groupby(["candidate", "baseline"])]
    ranked.sort(key=lambda part: (round(part[0], 2), -(part[3]["verdict"] == "faster").mean()))
    parts = [_candidate(*part) for part in ranked]
    return [f"{AXES[path]}: {_lead(ranked)}; {'; '.join(parts)}."]


def _lead(ranked: list[tuple[float, str, str, pd.DataFrame]]) -> str:
    """Who wins, if anyone does: a candidate that is faster in most settings, or the baseline when all are slower."""
    _, candidate, baseline, mine = ranked[0]
    words = mine["verdict"]
    if (words == "faster").mean() > 0.5:
        return f"{candidate} is fastest"
    if all((part[3]["verdict"] == "slower").mean() > 0.5 for part in ranked):
        return f"{baseline} is fastest"
    return "no clear winner"


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


def _not_ok(cells: pd.DataFrame) -> list[str]:
    failed = cells[cells["status"] != "ok"].assign(reason=lambda frame: frame["reason"].fillna("no reason given"))
    groups = failed.groupby(["status", "reason"], sort=False).size()
    return [f"{count} {status}: {reason}." for (status, reason), count in groups.items()]
