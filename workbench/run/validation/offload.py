"""Layers with half of their experts in host memory: priced from their cells, beside what one H200 measured."""

from typing import Any

import pandas as pd

from workbench.run.simulated import run_simulated
from workbench.run.validation.lines import line
from workbench.spec.scenario import Cell
from workbench.spec.standalone import one_cell
from workbench.spec.validation import ValidationRow

HARDWARE, DTYPE = "h200-sxm", "mxfp4_w4a16"
MEASURED = pd.DataFrame(
    [
        (1, 32, "lru", False, 0.5234375, 638.4, 25_857_900, 1338.5),
        (1, 32, "lfu", False, 0.515625, 713.8, 26_281_800, 1374.9),
        (1, 32, "pinned", False, 0.8046875, 269.8, 10_597_500, 907.5),
        (16, 16, "lru", False, 0.5099256, 6783.6, 334_881_000, 8028.9),
        (65_536, 2, "lru", False, 0.5, 17_614.3, 868_147_200, 49_239.3),
        (65_536, 2, "lru", True, 0.5, 2.56, 868_147_200, 45_071.6),
    ],
    columns=["tokens", "steps", "cache", "prefetch", "hit_rate", "stall_us", "offload_bytes", "us"],
)
"""The group `offload` of the suite kernels-h200 (gpt-oss-120b, our kernels) on one H200, 2026-12-01 13:42 UTC."""
HELD_OUT = (
    "gpt-oss-120b, half of the experts in host memory, measured 2026-12-01 13:42 on one H200. The cost of asking the "
    "device was read off another run of that day, resident layers and the link's rate off others; the cache is "
    "replayed from the cell's routing"
)


def offload_section() -> list[ValidationRow]:
    """Lines of latency, stall, bytes and hit rate; errors in percent of the measured figure."""
    rows = pd.concat([MEASURED, pd.DataFrame([_priced(row) for row in MEASURED.to_dict("records")])], axis=1)
    rows = rows.assign(hardware=HARDWARE, dtype=DTYPE, kernel="ours")
    fields = {
        "section": "offload",
        "method": "cache replay",
        "hardware": HARDWARE,
        "dtype": DTYPE,
        "held_out": HELD_OUT,
    }
    lines = [line(rows, split="latency", points=True, **fields)]
    waited = rows[~rows["prefetch"]]
    for name, part in (("stall_us", waited), ("offload_bytes", rows), ("hit_rate", rows)):
        shown = part.drop(columns=["us", "predicted_us"]).rename(
            columns={name: "us", f"predicted_{name}": "predicted_us"}
        )
        lines.append(line(shown, split=f"{name} without prefetch" if part is waited else name, **fields))
    return lines


def _priced(row: dict[str, Any]) -> dict[str, Any]:
    record = run_simulated(_cell(row)).record
    figures = ("hit_rate", "stall_us", "offload_bytes")
    return {f"predicted_{name}": getattr(record, name) for name in figures} | {"predicted_us": record.latency_us}


def _cell(row: dict[str, Any]) -> Cell:
    return one_cell({
        "model": "gpt-oss-120b", "scope": "layer_no_router", "precision": DTYPE, "cluster": {"hardware": HARDWARE},
        "router": "softmax_topk", "dispatch": {"strategy": "none"},
        "workload": {"tokens_per_rank": row["tokens"], "steps": row["steps"]},
        "offload": {"tier": "host", "resident_fraction": 0.5, "cache": row["cache"], "prefetch": row["prefetch"]},
    })  # fmt: skip
