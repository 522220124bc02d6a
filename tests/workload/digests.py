"""Digests of routed experts and logits of every skew, for comparison between processes."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from tests.workload.factory import make_cell
from tests.workload.trace_files import chosen, counts
from workbench.spec.router import Recorded
from workbench.workload.traffic import rank_logits, route_all

SKEWS = {
    "uniform": {}, "balanced": {}, "power_law": {"alpha": 1.2}, "zipf": {"alpha": 1.1},
    "lognormal": {"max_over_mean": 2.5}, "hot_rank": {"factor": 3.0}, "rotating_hot_rank": {"factor": 2.5},
    "cold_rank": {"rank": 1}, "topics": {"correlation": 0.3}, "drift": {"rate": 0.3},
}  # fmt: skip
PLACES = ((0, 0), (2, 0), (0, 70))


def digests(folder: Path) -> dict[str, str]:
    """By kind, layer and step."""
    np.savez(folder / "ids.npz", ids=np.stack([chosen(tokens=400, seed=seed) for seed in range(71)]))
    np.savez(folder / "counts.npz", counts=counts(steps=71))
    found = {}
    cells = {kind: make_cell(experts=16, tokens=50, skew={"kind": kind} | fields) for kind, fields in SKEWS.items()}
    for form in ("ids", "counts"):
        skew = {"kind": "trace", "path": str(folder / f"{form}.npz"), "form": form}
        cell = make_cell(experts=16, tokens=50, skew=skew)
        cells[f"trace_{form}"] = cell.model_copy(update={"router": Recorded()})
    for kind, cell in cells.items():
        for layer, step in PLACES:
            logits = rank_logits(cell, rank=2, layer=layer, step=step)
            ids = route_all(cell, layer=layer, step=step).ids
            both = logits.astype("<f4").tobytes() + ids.astype("<i4").tobytes()
            found[f"{kind} {layer} {step}"] = hashlib.sha256(both).hexdigest()[:16]
    return found


def vector_units(*, used: bool) -> list[str]:
    """NumPy's vector units beyond the least: those that it has code for, or those that it uses here."""
    inside = np._core._multiarray_umath
    return [name for name in inside.__cpu_dispatch__ if not used or inside.__cpu_features__[name]]


if __name__ == "__main__":
    print(json.dumps(digests(Path(sys.argv[1])) | {"used": vector_units(used=True)}))
