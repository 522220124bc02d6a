"""Fitted constants on rows and on shapes that they have not seen, and on GPUs that they were not fitted on."""

from dataclasses import replace
from functools import cache

import pandas as pd

from workbench.run.fit_constants import NEAR, band, measured_over_predicted, published_rows
from workbench.run.held_out import FOLDS, by_fold, by_shape, transferred
from workbench.run.validation.lines import band_of_other_families, band_of_others, breakdown, line, with_band
from workbench.simulate.families import widened
from workbench.spec.validation import ValidationRow

BY_ROW = (
    f"{FOLDS}-fold over the rows of each family (hardware, kernel, version, dtype) of moe_layer; seven constants and a "
    "tile fitted to the other folds; each band is made of the family's other folds"
)
BY_SHAPE = (
    "all rows of a shape (hidden, intermediate, top-k, experts) left out of its family; families of one shape are not "
    "in it; each band is made of the shapes left out of other families of the kernel"
)
BY_GPU = (
    "no row of the target GPU is used: each of its rows is the same row of the source times the model's ratio of both "
    "peaks, constants fitted to the source alone; the band joins that of the transfers between the other two GPUs with "
    "that of the source's rows left out by fold"
)
TRANSFER_GOALS = {("h200-sxm", "h100-sxm"): 12.0, ("b200-sxm", "gb200-nvl72"): 8.0}


def calibrated_section() -> list[ValidationRow]:
    """Lines of the method ``calibrated``."""
    folds, shapes = band_of_others(_folds()), band_of_other_families(by_shape(published_rows()))
    fields = {"section": "calibrated", "method": "calibrated"}
    by_row = fields | {"split": "row", "held_out": BY_ROW}
    shape = fields | {"split": "shape", "held_out": BY_SHAPE}
    many = shape | {"split": "shape, families of 3 or more"}
    return [
        line(folds, goals={"mape": 14.0, "coverage": (75, 90)}, **by_row),
        line(shapes, goals={"median": 13.0, "mape": 22.0, "coverage": (75, 90)}, **shape),
        line(shapes[shapes["shapes"] >= 3], goals={"mape": 19.0}, **many),
        *breakdown(folds, **by_row),
        *breakdown(shapes, **shape),
    ]


def transfer_section() -> list[ValidationRow]:
    """Rows carried to a GPU without any, beside the row copied unchanged."""
    lines = []
    for (source, target), most in TRANSFER_GOALS.items():
        found = with_band(_carried(source, target), *_other_band(source, target))
        fields = {"section": "transfer", "hardware": target, "held_out": BY_GPU}
        copied = line(found, predicted="copied_us", method="copied", split=f"from {source}", **fields)
        scaled = line(found, method="transfer", split=f"from {source}", points=True, **fields)
        better = scaled.mape is not None and copied.mape is not None and scaled.mape < copied.mape
        met = better and scaled.mape is not None and scaled.mape <= most
        goal = f"MAPE <= {most:g}% and below the copied row's"
        lines += [_judged(scaled, goal, met=met), copied]
    return lines


@cache
def _carried(source: str, target: str) -> pd.DataFrame:
    return transferred(published_rows(), source, target)


def _other_band(source: str, target: str) -> tuple[float, float]:
    others = pd.concat([_carried(*pair) for pair in NEAR if not {source, target} & set(pair)])
    own = _folds()
    own = own[own["hardware"] == source]
    return widened(tuple(band(measured_over_predicted(others))), tuple(band(measured_over_predicted(own))))


@cache
def _folds() -> pd.DataFrame:
    return by_fold(published_rows())


def _judged(row: ValidationRow, goal: str, *, met: bool) -> ValidationRow:
    return replace(row, goal=goal, met=met)
