"""Bands of measured links: the middle 80% of measured over predicted time of exchanges that were predicted without it.

``python -m workbench.run.fit_links`` writes ``workbench/simulate/data/links.json``.
"""

import json
import os
from typing import Any

from workbench.run.fit_constants import band, measured_over_predicted
from workbench.run.held_out_links import (
    VALIDATED_SMS,
    deepep_left_out,
    fitted_rows,
    four_nodes,
    moved_left_out,
    nccl_left_out,
    other_shapes,
)
from workbench.run.validation.tutel import MEASURED_MS, exchanges_ms
from workbench.simulate.collectives import ALL_TO_ALL
from workbench.simulate.links import BANDS


def fit_bands() -> dict[str, Any]:
    """``bands`` by the names that ``workbench.simulate.links`` knows."""
    nccl, deepep, far = nccl_left_out(), deepep_left_out(), four_nodes()
    far = far[far["sms"].isin((0, *VALIDATED_SMS))]
    frames = {
        "collective": nccl[nccl["op"].eq(ALL_TO_ALL) & ~nccl["is_end"]],
        "collective_fit": fitted_rows(),
        "collective_moved": moved_left_out(),
        "one_sided": other_shapes(),
        "one_sided_shape": deepep[deepep["mode"].eq("low_latency") & deepep["nodes"].eq(1) & ~deepep["is_end"]],
        "one_sided_far": far[far["mode"].eq("low_latency")],
        "streamed": deepep[deepep["mode"].eq("normal") & deepep["nodes"].eq(1) & ~deepep["is_end"]],
        "streamed_far": far[far["mode"].eq("normal")],
    }
    found = {name: band(measured_over_predicted(frame)) for name, frame in frames.items()}
    ratios = [measured_ms / exchanges_ms(gpus) for gpus, measured_ms in MEASURED_MS.items()]
    return {"bands": found | {"collective_many_nodes": [round(min(ratios), 4), round(max(ratios), 4)]}}


def write() -> None:
    """Whole or not at all."""
    part = BANDS.with_name(BANDS.name + ".part")
    part.write_text(json.dumps(fit_bands(), indent=1) + "\n", encoding="utf-8")
    os.replace(part, BANDS)


if __name__ == "__main__":
    write()
