"""Reports of the ranks of one cell as the rows of its tables."""

from collections.abc import Sequence
from typing import Any

from workbench.balance.dynamics import judged_step
from workbench.run.merged_bytes import link_rows
from workbench.run.report import RankReport
from workbench.spec.scenario import Cell


def table_rows(cell: Cell, reports: Sequence[RankReport]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table of a record, by its name."""
    return {
        "stages": [row for report in reports for row in _stage_rows(cell, report)],
        "links": link_rows(cell, reports),
        "loads": _load_rows(cell, reports),
        "memory": [
            {"cell_id": cell.cell_id, "rank": report.rank, "what": "weights", "bytes": report.weight_bytes}
            for report in reports
            if report.weight_bytes
        ],
        "samples": [
            {"cell_id": cell.cell_id, "rank": report.rank, "iteration": iteration, "repeat": 0, "us": us}
            for report in reports
            for iteration, us in enumerate(report.samples_us)
        ],
    }


def _stage_rows(cell: Cell, report: RankReport) -> list[dict[str, Any]]:
    rows, start = [], 0.0
    for name, us in report.stages:
        rows.append(
            {"cell_id": cell.cell_id, "rank": report.rank, "stream": "main", "stage": name, "start_us": start,
             "duration_us": us, "bytes": None, "flops": None}
        )  # fmt: skip
        start += us
    return rows


def _load_rows(cell: Cell, reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    if cell.model is None:
        return []
    tokens: dict[int, int] = {}
    for report in reports:
        for expert, pairs in report.expert_tokens:
            tokens[expert] = tokens.get(expert, 0) + pairs
    by_rank = {report.rank: report.pairs for report in reports}
    return [
        {"cell_id": cell.cell_id, "layer": 0, "step": judged_step(cell), "kind": kind, "index": index, "tokens": count}
        for kind, counts in (("expert", tokens), ("rank", by_rank))
        for index, count in sorted(counts.items())
    ]
