"""Pairs of cells and their verdicts: within a run along one path, or between two runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.analysis.columns import (
    COLUMN_PATHS,
    dotted_path,
    planned_cells,
    settings,
    value_at,
    value_label,
    without_paths,
)
from workbench.analysis.statistics import Series, slowest_series
from workbench.analysis.verdict import Side, Verdict, judge_all

LABELS = ("cell_id", "scenario", "group")
"""Fields of a planned cell that name it and change nothing."""

DERIVED = {"cluster": ("parallel.ep", "parallel.dp", "cluster.name"), "precision": ("precision.name",)}
"""What follows from a section when it changes, so that it may differ too: EP spans the cluster's GPUs unless set."""

DEFAULT_BASELINES = {"precision": "bf16", "dispatch.strategy": "flat", "balance.placement": "linear(0)"}

COLUMNS = (
    "baseline", "candidate", "verdict", "ratio", "ratio_low", "ratio_high", "baseline_us", "candidate_us", "p_value",
    "q_value", "spread", "repeats", "judged_by", "why", "baseline_cell", "candidate_cell", "engine", "device",
    "hardware",
)  # fmt: skip


Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunTables:
    """The two tables of a run that a comparison reads."""

    cells: pd.DataFrame
    samples: pd.DataFrame


@dataclass(frozen=True)
class _Couple:
    """Two cells to judge, either of which may be missing, and what their sides are called."""

    old: Row | None
    new: Row | None
    old_series: Series | None
    new_series: Series | None
    names: tuple[str, str]
    missing: str = ""

    @property
    def shown(self) -> Row:
        row = self.new if self.new is not None else self.old
        assert row is not None
        return row


def compare_by(
    cells: pd.DataFrame,
    samples: pd.DataFrame,
    *,
    by: str = "precision",
    baseline: str | None = None,
    floors: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Every cell against the baseline among those that differ from it only at the path ``by``.

    ``by`` is a dotted path of the planned cell or a column of ``cells``. Without ``baseline`` it is bf16 for
    precisions, flat for strategies, else the first that came. One row a candidate, ``ratio`` candidate over
    baseline; where the ``baseline`` asked for is missing the row says so, and a cell that stands alone has none.
    ``floors`` is the noise floor by device where an A/A run measured one.
    Raises ValueError for an unknown path or baseline.
    """
    planned = planned_cells(cells)
    path = dotted_path(by, planned)
    labels = [value_label(value_at(cell, path)) for cell in planned]
    if baseline is not None and baseline not in labels:
        known = ", ".join(dict.fromkeys(labels))
        raise ValueError(f"--baseline {baseline}: no cell has that {by}; there are {known}")
    partners: dict[str, list[int]] = {}
    for index, cell in enumerate(planned):
        partners.setdefault(_key(cell, path), []).append(index)
    context = _context(cells, path=path)
    rows, series = cells.to_dict("records"), slowest_series(samples)
    couples = []
    for members in partners.values():
        base = _base(members, labels, path, baseline)
        old = rows[base] if base is not None else None
        named = labels[base] if base is not None else str(baseline)
        for i in members:
            if i != base:
                pair = (old, rows[i], series.get(old["cell_id"]) if old else None, series.get(rows[i]["cell_id"]))
                couples.append(_Couple(*pair, (named, labels[i]), f"no {baseline} beside it"))
    return _frame(couples, context, floors)


def compare_runs(first: RunTables, second: RunTables, *, floors: Mapping[str, float] | None = None) -> pd.DataFrame:
    """The second run's cells against the same cells of the first; those of one run only get a row that says so."""
    context = _context(pd.concat([first.cells, second.cells]).drop_duplicates("cell_id").reset_index(drop=True))
    old = {row["cell_id"]: row for row in first.cells.to_dict("records")}
    new = {row["cell_id"]: row for row in second.cells.to_dict("records")}
    old_series, new_series = slowest_series(first.samples), slowest_series(second.samples)
    names = ("first run", "second run")
    couples = [
        _Couple(old.get(cell), new.get(cell), old_series.get(cell), new_series.get(cell), names)
        for cell in dict.fromkeys([*old, *new])
    ]
    return _frame(couples, context, floors)


def among(pairs: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """The pairs of which both cells are among ``cells``; a verdict stays the one that all cells together led to."""
    ids = set(cells["cell_id"])
    return pairs[pairs["baseline_cell"].isin(ids) & pairs["candidate_cell"].isin(ids)]


def _base(members: Sequence[int], labels: Sequence[str], path: str, wanted: str | None) -> int | None:
    """The member that the others are held against, None when the one asked for is not among them."""
    word = DEFAULT_BASELINES.get(path) if wanted is None else wanted
    found = next((i for i in members if labels[i] == word), None)
    return members[0] if found is None and wanted is None else found


def _context(cells: pd.DataFrame, *, path: str = "") -> dict[str, dict[str, Any]]:
    """What tells the pairs apart, by cell, without what ``path`` itself makes differ."""
    told = settings(cells)
    ends = ("", path, path.rpartition(".")[2])
    names = [
        name
        for name in told
        if name not in COLUMNS and name not in ends and not f"{COLUMN_PATHS.get(name, name)}.".startswith(f"{path}.")
    ]
    return dict(zip(cells["cell_id"], told[names].to_dict("records"), strict=True))


def _key(cell: Mapping[str, Any], path: str) -> str:
    dropped = (*LABELS, path, *DERIVED.get(path.partition(".")[0], ()))
    return json.dumps(without_paths(cell, dropped), sort_keys=True)


def _frame(
    couples: Sequence[_Couple], context: Mapping[str, dict[str, Any]], floors: Mapping[str, float] | None
) -> pd.DataFrame:
    """All couples judged together, a row each."""
    whole = [couple for couple in couples if couple.old is not None and couple.new is not None]
    judged = iter(judge_all([_sides(couple) for couple in whole], floors=floors))
    rows = [
        _row(couple, next(judged) if couple.old is not None and couple.new is not None else _alone(couple), context)
        for couple in couples
    ]
    frame = pd.DataFrame(rows, columns=[*dict.fromkeys([*next(iter(context.values()), {}), *COLUMNS])])
    numbers = ("ratio", "ratio_low", "ratio_high", "baseline_us", "candidate_us", "p_value", "q_value", "spread")
    return frame.astype(dict.fromkeys(numbers, float) | {"repeats": "Int64"})


def _alone(couple: _Couple) -> Verdict:
    why = couple.missing or f"not in the {couple.names[0] if couple.old is None else couple.names[1]}"
    return Verdict(word="unclear", reason=why, method="none")


def _row(couple: _Couple, verdict: Verdict, context: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    old, new, shown = couple.old, couple.new, couple.shown
    return {
        **context[shown["cell_id"]],
        "baseline": couple.names[0],
        "candidate": couple.names[1],
        "verdict": verdict.word,
        "ratio": verdict.ratio,
        "ratio_low": verdict.ratio_low,
        "ratio_high": verdict.ratio_high,
        "baseline_us": verdict.baseline_us or (old["latency_us"] if old is not None else None),
        "candidate_us": verdict.candidate_us or (new["latency_us"] if new is not None else None),
        "p_value": verdict.p_value,
        "q_value": verdict.q_value,
        "spread": verdict.spread,
        "repeats": verdict.repeats,
        "judged_by": verdict.method,
        "why": verdict.reason,
        "baseline_cell": old["cell_id"] if old is not None else None,
        "candidate_cell": new["cell_id"] if new is not None else None,
        **{name: shown[name] for name in ("engine", "device", "hardware")},
    }


def _sides(couple: _Couple) -> tuple[Side, Side]:
    assert couple.old is not None
    assert couple.new is not None
    return _side(couple.new, couple.new_series), _side(couple.old, couple.old_series)


def _side(row: Row, series: Series | None) -> Side:
    return Side(
        status=row["status"],
        engine=row["engine"],
        device=row["device"] if isinstance(row["device"], str) else None,
        latency_us=None if pd.isna(row["latency_us"]) else float(row["latency_us"]),
        series=series,
    )
