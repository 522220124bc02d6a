"""Constants and bands of every family of kernels, fitted to the tables and records that come with the package.

``moe-workbench calibrate --constants`` writes them to ``workbench/simulate/data/constants.json``. A band is the range
that holds the middle 80% of measured over predicted time where predictions were made without the measurements
(``workbench.run.held_out``).
"""

import json
from typing import Any

import numpy as np
import pandas as pd

from workbench.run.held_out import Rows, by_fold, by_shape, by_token, families, fitted, kin_of, rows_of, transferred
from workbench.simulate.calibration_files import read_records
from workbench.simulate.kernel_model import to_list
from workbench.simulate.published_moe import FAMILY, SHAPE, moe_layers, precision_of, wide_layers

QUANTILES = (0.1, 0.9)
FEWEST_FOR_BAND = 20
MANY_SPLITS = 10
NEAR = (
    ("h200-sxm", "h100-sxm"), ("h100-sxm", "h200-sxm"), ("b200-sxm", "gb200-nvl72"), ("gb200-nvl72", "b200-sxm"),
)  # fmt: skip
"""Pairs of one architecture, whose tables hold the same kernels."""


def band(ratio: pd.Series | np.ndarray) -> list[float]:
    """The 80% band of measured over predicted time."""
    return [round(float(value), 4) for value in np.quantile(ratio, QUANTILES)]


def band_of_splits(frame: pd.DataFrame) -> list[float]:
    """The band of rows that were left out in groups: with few groups the widest of the groups' own bands, since the
    next group may be unlike any of them."""
    ratio = measured_over_predicted(frame)
    if frame["split"].nunique() >= MANY_SPLITS:
        return band(ratio)
    each = [band(part) for _, part in ratio.groupby(frame["split"])]
    return [min(low for low, _ in each), max(high for _, high in each)]


def measured_over_predicted(frame: pd.DataFrame) -> pd.Series:
    return frame["us"] / frame["predicted_us"]


def published_rows() -> Rows:
    """The published layers without those above the part's physical peak."""
    frame = moe_layers()
    return rows_of(frame[~frame["above_peak"]])


def wide_rows() -> Rows:
    """The published layers behind a dispatch, without those above the part's physical peak."""
    frame = wide_layers()
    return rows_of(frame[~frame["above_peak"]])


def own_rows() -> Rows:
    """This product's records of routed experts by themselves."""
    frame = read_records()
    return rows_of(frame[frame["experts_alone"]])


def fit_all() -> dict[str, Any]:
    """``families`` of all kinds and the ``bands`` of methods."""
    outside, own = published_rows(), own_rows()
    entries, bands = [], {}
    for kind, rows in (("published", outside), ("own", own)):
        folds, shapes, tokens = by_fold(rows), by_shape(rows), by_token(rows)
        inside, ends = tokens[~tokens["is_end"]], tokens[tokens["is_end"]]
        bands[kind] = {
            "unseen_shape": band_of_splits(shapes) if kind == "own" else band(measured_over_predicted(shapes)),
            "between_points": band_of_splits(inside) if kind == "own" else band(measured_over_predicted(inside)),
            "beyond_ends": band(measured_over_predicted(ends)),
        }
        if kind == "published":
            by_kernel = {kernel: band(measured_over_predicted(part)) for kernel, part in shapes.groupby("kernel")}
            bands[kind]["unseen_shape_by_kernel"] = by_kernel
        entries += family_entries(rows, folds, kind=kind)
    wide = wide_rows()
    tokens = by_token(wide)
    between = {"between": band(measured_over_predicted(tokens[~tokens["is_end"]]))}
    entries += [entry | between for entry in family_entries(wide, by_fold(wide), kind="published")]
    near = pd.concat([transferred(outside, *pair) for pair in NEAR])
    bands["transfer"] = {"near": band(measured_over_predicted(near)), "far": band(_far_ratio(outside))}
    return {"families": entries, "bands": bands}


def _far_ratio(rows: Rows) -> pd.Series:
    """Measured over predicted where one architecture's constants are carried to another, per kernel and dtype.

    Tables of two architectures share no kernel version, so families of the same kernel and dtype are paired.
    """
    found = families(rows)
    ratios = []
    for source, at in found.items():
        for target, there in found.items():
            same = (source[1], source[4]) == (target[1], target[4])
            if same and _major(source[0]) != _major(target[0]):
                constants = fitted(rows, at)
                if constants is not None:
                    chosen = rows.take(there)
                    ratios.append(pd.Series(chosen.us / chosen.modelled_us(constants)))
    return pd.concat(ratios)


def _major(hardware: str) -> str:
    return {"a": "8", "h": "9", "b": "10", "g": "10"}[hardware[0]]


def family_entries(rows: Rows, folds: pd.DataFrame, *, kind: str) -> list[dict[str, Any]]:
    entries = []
    by_family = dict(iter(folds.groupby(list(FAMILY), dropna=False)))
    everywhere = band(measured_over_predicted(folds))
    for family, at in families(rows).items():
        constants = fitted(rows, at, kin=kin_of(rows, family))
        if constants is None:
            continue
        left_out = by_family.get(family)
        enough = left_out is not None and len(left_out) >= FEWEST_FOR_BAND
        frame = rows.frame.iloc[at]
        entries.append(
            dict(zip(FAMILY, (_text(value) for value in family), strict=True))
            | {
                "kind": kind,
                "precision": precision_of(family[4]).name,
                "constants": to_list(constants),
                "band": band(measured_over_predicted(left_out)) if enough else everywhere,
                "rows": len(at),
                "shapes": frame[list(SHAPE)].drop_duplicates().astype(int).to_numpy().tolist(),
            }
        )
    return entries


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def to_json(constants: dict[str, Any]) -> bytes:
    """One family a line, so that changes can be read."""
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in constants["families"])
    return f'{{"bands": {json.dumps(constants["bands"])},\n "families": [\n{lines}\n]}}\n'.encode()
