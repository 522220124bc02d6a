"""What a run says, in sentences made from its numbers: what wins, by how much, how sure, and what was not run."""

import pandas as pd

from workbench.analysis.columns import planned_cells
from workbench.analysis.compare import compare_by
from workbench.report.conditions import CPU_NOTE, condition_groups, group_title, is_measured_cpu
from workbench.report.units import number_text, percent_text

AXES = {"precision": "precision", "dispatch.strategy": "dispatch strategy", "workload.skew": "skew"}
WORDS = ("faster", "slower", "same", "unclear")


def summarise(cells: pd.DataFrame, samples: pd.DataFrame) -> list[str]:
    """Sentences for people, the most important first; plain text without markup."""
    if cells.empty:
        return ["No cell has finished yet."]
    sentences = [_counts(cells)]
    for _, group in condition_groups(cells[cells["status"] == "ok"]):
        title, _ = group_title(group)
        found = [sentence for path in AXES for sentence in _winners(group, samples, path)]
        found += _communication(group)
        sentences += [f"{title}: {sentence}" for sentence in found]
        if found and is_measured_cpu(group):
            sentences.append(CPU_NOTE)
    return sentences + _errors(cells) + _not_ok(cells)


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
    parts = []
    grouped = [(mine["ratio"].median(), *key, mine) for key, mine in pairs.groupby(["candidate", "baseline"])]
    for ratio, candidate, baseline, mine in sorted(grouped, key=lambda part: part[0]):
        low, high = mine["ratio"].min(), mine["ratio"].max()
        span = f" ({low:.2f} to {high:.2f})" if len(mine) > 1 else ""
        counts = mine["verdict"].value_counts()
        words = ", ".join(f"{counts[word]} {word}" for word in WORDS if word in counts)
        parts.append(f"{candidate} takes {ratio:.2f}x the time of {baseline}{span}: {words}")
    return [f"by {AXES[path]}, {'; '.join(parts)}."]


def _communication(cells: pd.DataFrame) -> list[str]:
    known = cells.dropna(subset=["comm_fraction"])
    known = known[known["comm_fraction"] > 0]
    if known.empty:
        return []
    least, most = known.loc[known["comm_fraction"].idxmin()], known.loc[known["comm_fraction"].idxmax()]
    if len(known) == 1 or percent_text(least["comm_fraction"]) == percent_text(most["comm_fraction"]):
        return [f"communication takes {percent_text(most['comm_fraction'])} of the layer."]
    ends = [
        f"{percent_text(row['comm_fraction'])} ({row['num_gpus']} ranks, {row['strategy']})" for row in (least, most)
    ]
    return [f"communication takes {ends[0]} to {ends[1]} of the layer."]


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
