"""Recorded traffic is read before anything runs, so that a file that cannot be used is refused at once."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.spec.scenario import Cell


def require_traces(cells: "Iterable[Cell]") -> None:
    """Raises ValueError, naming the field and the mend, for a trace that a cell's model cannot use."""
    traced = [cell for cell in cells if cell.workload.skew.kind == "trace" and cell.model is not None]
    if not traced:
        return
    from workbench.workload.recording import recording_of

    seen = set()
    for cell in traced:
        model, skew = cell.model, cell.workload.skew
        assert model is not None
        asked = (skew, cell.trace_digest, model.num_experts, model.top_k, cell.workload.layers)
        if asked not in seen:
            seen.add(asked)
            recording_of(cell)
