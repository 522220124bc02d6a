"""A scenario measured several times over, each time by processes of its own, and kept as one run."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from workbench.orchestrate.execute import RunSummary
    from workbench.spec.scenario import Cell

MOST_REPEATS = 100
FOLDER = "repeats"
"""Of a merged run: the runs that it was made of, as they were."""


def run_repeats(
    cells: "Sequence[Cell]", repeats: int, run_once: "Callable[[Sequence[Cell]], RunSummary]", *, talk: Console
) -> "RunSummary":
    """``run_once`` as many times, then one run of all: each measured cell with samples of every repeat.

    Simulated cells are priced once. When a repeat is stopped or fails, the runs stay side by side and its summary
    comes back. Raises ValueError for a number of repeats that makes no sense.
    """
    from workbench.store.merge import merge_runs
    from workbench.store.reader import read_table
    from workbench.store.run_folder import RunFolder

    if not 1 <= repeats <= MOST_REPEATS:
        raise ValueError(f"--repeats {repeats}: give a number from 1 to {MOST_REPEATS}")
    measured = [cell for cell in cells if cell.engine != "simulate"]
    if not measured and repeats > 1:
        talk.print("no cell of this run is measured, so there is nothing to repeat", markup=False)
        repeats = 1
    summaries = []
    for number in range(repeats):
        if repeats > 1:
            talk.print(f"repeat {number + 1} of {repeats}", markup=False)
        summaries.append(run_once(cells if number == 0 else measured))
        if summaries[-1].status != "finished":
            break
    last = summaries[-1]
    if len(summaries) == 1 or last.status != "finished":
        return last
    folders = [RunFolder(path=summary.path, run_id=summary.run_id) for summary in summaries]
    merged = merge_runs(folders, results_dir=last.path.parent)
    (merged.path / FOLDER).mkdir()
    for folder in folders:
        os.replace(folder.path, merged.path / FOLDER / folder.run_id)
    counts = read_table(merged, "cells").frame["status"].value_counts().to_dict()
    failed = max(summary.exit_status for summary in summaries)
    return replace(last, run_id=merged.run_id, path=merged.path, counts=counts, exit_status=failed)
