"""Stages of every rank of simulated cells, priced anew: a run keeps those of two ranks a cell."""

from collections.abc import Iterable
from typing import Any

from workbench.run.simulated import price_steps
from workbench.run.simulated_tables import stage_rows
from workbench.simulate.support import LAYER_SCOPES
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell

MAX_RANKS = 4096
"""In all, so that a viewer still opens the file; the cells after that keep their two ranks."""
SCOPES = (*LAYER_SCOPES, "train_step")


def every_rank(cells: Iterable[Cell], *, max_ranks: int = MAX_RANKS) -> dict[str, list[dict[str, Any]]]:
    """Rows of the table ``stages`` by cell id, of all ranks of the first layer's group, for as many of the cells as
    ``max_ranks`` hold. They are of the same price as the record, whose numbers a cell decides."""
    rows: dict[str, list[dict[str, Any]]] = {}
    left = max_ranks
    for cell in cells:
        if cell.engine != "simulate" or cell.scope.kind not in SCOPES or cell.ep > left:
            continue
        try:
            cost = price_steps(cell)[0][0]
        except (Unsupported, ValueError):  # a record of another version, or brought in from elsewhere
            continue
        left -= cell.ep
        rows[cell.cell_id] = stage_rows(cell, cost, ranks=range(cell.ep))
    return rows
