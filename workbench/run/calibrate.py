"""Measures this machine for the simulator: its ceilings, and layers of our kernels over sizes and token counts.

``moe-workbench calibrate`` runs it. What it writes (``workbench.spec.calibration``) the simulator finds from then on:
curves for the sizes measured, constants for all others, and for ``cpu`` the ceilings that the catalog only guesses.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import pandas as pd
import torch

from workbench.measure.clock import clock_for
from workbench.run.context import close_context, open_context
from workbench.run.fit_constants import band_of_splits, family_entries, to_json
from workbench.run.held_out import by_fold, by_token, rows_of
from workbench.run.measured import FORM_FACTORS, merge_reports, run_rank
from workbench.run.own_records import own_records, to_parquet
from workbench.simulate.calibration_files import CEILINGS, CONSTANTS, RECORDS, write_whole
from workbench.spec.catalog import load_hardware, names, resolve_cluster, resolve_model
from workbench.spec.cluster import ClusterRef, Hardware
from workbench.spec.precision import PRECISIONS
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell

PLANS = {
    "cpu": (("deepseek-v3-tiny", "qwen3-tiny", "mixtral-tiny"), (1, 4, 16, 64, 256),
            ("bf16", "fp8_block", "mxfp4_w4a16", "nvfp4_w4a16"), 0.1),
    "cuda": (("qwen3-235b-a22b", "gpt-oss-120b", "mixtral-8x7b"), (1, 16, 64, 256, 1024, 4096),
             ("bf16", "fp8_block", "fp8_row", "mxfp4_w4a16", "nvfp4_w4a16"), 0.2),
}  # fmt: skip
"""By device: models, tokens, precisions, and seconds a cell."""
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
MATRIX = {"cpu": 1024, "cuda": 8192}
REPEATS = 15


def calibrate_machine(folder: Path) -> Iterator[str]:
    """Measure this machine's part and write its calibration under ``folder``; yields what was found, line by line.

    Raises ValueError on a GPU that the catalog does not know.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    part = this_part(device)
    found = measure_ceilings(device)
    place = folder / part
    write_whole(place / CEILINGS, json.dumps(found, indent=1).encode())
    yield f"{part}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    load_hardware.cache_clear()
    cells, loads = measure_layers(part, device)
    records = own_records(cells, loads)
    write_whole(place / RECORDS, to_parquet(records))
    refused = len(cells) - len(records)
    yield f"{len(records)} layers measured" + (f", {refused} could not be" if refused else "")
    rows = rows_of(records[records["experts_alone"]])
    tokens = by_token(rows)
    between = band_of_splits(tokens[~tokens["is_end"]])
    entries = [entry | {"between": between} for entry in family_entries(rows, by_fold(rows), kind="own")]
    write_whole(place / CONSTANTS, to_json({"families": entries, "bands": {}}))
    yield from (f"{one['precision']}: {one['rows']} rows, 80% band {_said(one['band'])}" for one in entries)
    yield f"between measured token counts: 80% band {_said(between)}"
    yield f"wrote {place}"


def _said(band: list[float]) -> str:
    return f"{band[0]:.2f} to {band[1]:.2f} times the estimate"


def this_part(device: str) -> str:
    """The catalog's name of this machine's GPU, or ``cpu``."""
    if device == "cpu":
        return "cpu"
    found = torch.cuda.get_device_name().lower()
    parts = [name for name in names("hardware") if load_hardware(name).device == "cuda"]
    matching = [name for name in parts if all(w in found for w in name.split("-") if w not in FORM_FACTORS)]
    if not matching:
        raise ValueError(f"calibrate: the catalog has no part like {found}; known: {', '.join(parts)}")
    return max(matching, key=len)


def measure_ceilings(device: str) -> dict[str, float]:
    """Fields of Hardware as this machine reaches them: bf16 TFLOP/s of a square product, TB/s of a copy (bytes read and
    written), microseconds of a small kernel."""
    clock = clock_for(torch.device(device))
    size, matrix = COPY_BYTES[device], MATRIX[device]
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    left, right = (torch.randn(matrix, matrix, dtype=torch.bfloat16, device=device) for _ in range(2))
    small = torch.zeros(8, device=device)

    def us(call: Callable[[], object]) -> float:
        call()
        return median(clock.time(call) for _ in range(REPEATS))

    return {
        "bf16_dense_tflops": 2 * matrix**3 / us(lambda: left @ right) / 1e6,
        "memory_tb_per_s": 2 * size / us(lambda: target.copy_(source)) / 1e6,
        "launch_us": us(lambda: small.add_(1.0)),
    }


def measure_layers(part: str, device: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(cells, loads) of layers of our kernels on this machine, every plan's cell measured by itself."""
    context = open_context(rank=0, world=1, device_type=device, ranks_per_node=1)
    try:
        outcomes = [merge_reports(cell, [run_rank(cell, context)]) for cell in planned(load_hardware(part), device)]
    finally:
        close_context(context)
    cells = pd.DataFrame([asdict(outcome.record) for outcome in outcomes])
    return cells.assign(run_id=f"calibrate-{part}"), pd.DataFrame(_loads(outcomes))


def _loads(outcomes: list[Outcome]) -> list[dict[str, object]]:
    return [row for outcome in outcomes for row in outcome.tables.get("loads", ())]


def planned(hardware: Hardware, device: str) -> Iterator[Cell]:
    """Routed experts alone on one rank, uniform routing, warm caches."""
    models, tokens, precisions, seconds = PLANS[device]
    cluster = resolve_cluster(ClusterRef(hardware=hardware.name))
    for model in models:
        for precision in precisions:
            for count in tokens:
                yield Cell.model_validate(
                    {
                        "cell_id": f"{model}-{precision}-{count}", "scenario": "calibrate", "group": "",
                        "trace_digest": None, "cluster": cluster, "precision": PRECISIONS[precision],
                        "model": resolve_model({"base": model, "num_shared_experts": 0, "shared_intermediate": 0}),
                        "scope": "layer_no_router", "parallel": {"ep": 1}, "dispatch": {"strategy": "none"},
                        "workload": {"tokens_per_rank": count, "skew": "uniform"}, "engine": "measure",
                        "balance": {"placement": {"kind": "linear", "redundant_experts": 0}},
                        "measure": {"warmup": 2, "min_samples": 7, "max_seconds": seconds, "cache": "warm"},
                    }
                )  # fmt: skip
