"""The simulator against this product's own records of H200: experts by themselves, and whole layers of another run."""

import json

import pandas as pd

from workbench.run.fit_constants import own_rows
from workbench.run.held_out import by_fold, by_shape, by_token
from workbench.run.simulated import run_simulated
from workbench.run.validation.lines import band_of_other_splits, band_of_others, line
from workbench.simulate.calibration_files import read_records
from workbench.spec.scenario import Cell
from workbench.spec.validation import ValidationRow

TOKEN = (
    "records of routed experts alone; a token count left out of each curve, the constants fitted without it; each band "
    "is the widest of those of the other token counts"
)
ROW = "5-fold over the same records; few rows of a format are held near the kernel's other formats, also left out"
SHAPE = "the same records, all rows of a model left out; each band is the widest of those of the other models"
LAYER = (
    "whole layers (gate, experts, shared expert, cold caches) of a run whose records no constant and no curve is made "
    "of, simulated from the planned cell; gate and shared expert by roofline"
)


def own_section() -> list[ValidationRow]:
    """Lines on this product's records; the last ones are of whole layers."""
    rows = own_rows()
    tokens = by_token(rows)
    fields = {"section": "own", "hardware": "h200-sxm"}
    measured = fields | {"method": "measured", "held_out": TOKEN}
    calibrated = fields | {"method": "calibrated"}
    inside, ends = (band_of_other_splits(tokens[tokens["is_end"] == is_end]) for is_end in (False, True))
    lines = [
        line(inside, split="token count", goals={"coverage": (75, 90)}, points=True, **measured),
        line(ends, split="ends of the curve", points=True, **measured),
        line(band_of_others(by_fold(rows)), split="row", held_out=ROW, points=True, **calibrated),
        line(band_of_other_splits(by_shape(rows)), split="model", held_out=SHAPE, points=True, **calibrated),
    ]
    return lines + _layers(fields)


def _layers(fields: dict[str, str]) -> list[ValidationRow]:
    records = read_records()
    records = records[~records["experts_alone"]]
    parts = []
    for row in records.to_dict("records"):
        planned = json.loads(row["cell_json"]) | {"engine": "simulate", "method": "best"}
        record = run_simulated(Cell.model_validate(planned)).record
        if record.status == "ok":
            figures = ("method", "band_low_us", "band_high_us")
            simulated = {name: getattr(record, name) for name in figures}
            parts.append(row | simulated | {"predicted_us": record.latency_us})
    frame = pd.DataFrame(parts)
    fields = fields | {"split": "another run", "held_out": LAYER}
    lines = [line(frame, method="best", goals={"coverage": (75, 100)}, **fields)]
    return lines + [line(part, method=name, points=True, **fields) for name, part in frame.groupby("method")]
