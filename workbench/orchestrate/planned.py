"""The plan of a run, kept in its folder, so that a resumed run needs no scenario file."""

import gzip
from collections.abc import Iterable, Sequence

from workbench.spec.scenario import Cell
from workbench.store.files import write_atomically
from workbench.store.run_folder import RunFolder

PLAN_FILE = "plan.jsonl.gz"


def unique_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Cells in order, the first of each id: several scenarios may plan the same cell."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.cell_id, cell)
    return list(first.values())


def write_plan(run: RunFolder, cells: Sequence[Cell]) -> None:
    """Keep the planned cells of a run."""
    lines = "".join(cell.model_dump_json() + "\n" for cell in cells)
    write_atomically(run.path / PLAN_FILE, gzip.compress(lines.encode("utf-8"), compresslevel=1))


def read_plan(run: RunFolder) -> list[Cell]:
    """The planned cells of a run. Raises ValueError when they cannot be read."""
    path = run.path / PLAN_FILE
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        return [Cell.model_validate_json(line) for line in text.splitlines()]
    except (OSError, EOFError, ValueError) as error:
        mend = "give the scenario again: moe-workbench run SCENARIO --resume RUN"
        raise ValueError(f"{path}: the plan of this run cannot be read ({type(error).__name__}); {mend}") from error
