"""Exchanges: curves with a size left out, and dispatch plans priced on four nodes with constants of one and two."""

import numpy as np
import pandas as pd

from workbench.run.fit_constants import QUANTILES, measured_over_predicted
from workbench.run.held_out_links import (
    VALIDATED_SMS,
    backends_left_out,
    deepep_left_out,
    four_nodes,
    moved_left_out,
    nccl_left_out,
    other_clusters,
    other_shapes,
)
from workbench.run.validation.lines import Goals, band_of_other_splits, line
from workbench.simulate.collectives import ALL_TO_ALL, measured_parts
from workbench.simulate.fabric import near_parts
from workbench.spec.catalog import load_hardware, names
from workbench.spec.validation import ValidationRow

SECTION = "communication"
NCCL = (
    "nccl_intranode, one node: one size left out of each curve (part, collective, GPUs), its time interpolated between "
    "the sizes beside it; each band is made of the other curves; tokens are bytes"
)
CURVES = (
    "{table}: one token count left out of each curve (part, version, direction, nodes, SMs, shape), its time "
    "interpolated between the counts beside it; each band is made of the other curves"
)
FOUR = (
    "a2a_deepep, H100, sglang 0.5.6.post2: no row of four nodes is used. DeepEP's workload is routed, its plan made by "
    "our low_latency and node_dedup and priced by the network model; latency, share of the NIC, curves of the SMs and "
    "the barrier are those of rows of one and two nodes; each band is made of the other modes and directions"
)
STILL = (
    "the same with the barrier of two nodes. That a barrier takes log2(nodes) rounds is the one thing that two nodes "
    "cannot show; the form was assumed with the four-node rows known, its size fitted to one and two nodes"
)
CLUSTERS = (
    "comm_published: latencies of DeepEP's low-latency mode on clusters of others, 16 to 256 ranks, 128 tokens; priced "
    "with the constants of the H100 rows of one and two nodes"
)
SHAPES = "a2a_deepep, one node: shapes other than 7168/8/256, by that shape's curve over the bytes that leave a rank"
MOVED = "nccl_intranode: all-to-all curves of every part by those of each other part and the rates of both parts' links"


def communication_section() -> list[ValidationRow]:
    """Lines of curves and of plans; the last name parts whose links nobody measured."""
    return [*_curves(), *_plans(), *_unmeasured()]


def _curves() -> list[ValidationRow]:
    nccl, deepep, backends = (_banded(frame) for frame in (nccl_left_out(), deepep_left_out(), backends_left_out()))
    fields = {"method": "published", "held_out": NCCL}
    lines = _both(nccl[nccl["op"].eq(ALL_TO_ALL)], name="NCCL all-to-all", goals={"mape": 8.0}, **fields)
    for count, part in nccl[nccl["op"].eq(ALL_TO_ALL) & ~nccl["is_end"]].groupby("num_gpus"):
        lines.append(_line(part, split=f"NCCL all-to-all, {count} GPUs", **fields))
    for op, part in nccl[~nccl["op"].eq(ALL_TO_ALL)].groupby("op"):
        lines += _both(part, name=f"NCCL {op}", **fields)
    fields = {"method": "published", "held_out": CURVES.format(table="a2a_deepep")}
    for mode, part in deepep.groupby("mode"):
        lines += _both(part, name=f"DeepEP {mode}", goals={"mape": 5.0}, **fields)
    fields = {"method": "published", "held_out": CURVES.format(table="a2a_moe_backends")}
    for backend, part in backends.groupby("comm_backend"):
        lines += _both(part, name=backend, **fields)
    shapes, moved = other_shapes(), moved_left_out()
    lines.append(_line(band_of_other_splits(shapes), split="another shape", method="published", held_out=SHAPES))
    return [*lines, _line(band_of_other_splits(moved), split="another part", method="transfer", held_out=MOVED)]


def _plans() -> list[ValidationRow]:
    rows = band_of_other_splits(four_nodes())
    goal = rows[rows["sms"].isin((0, *VALIDATED_SMS))]
    fields = {"method": "calibrated", "hardware": "h100-sxm", "held_out": FOUR}
    lines = [_line(goal, split="four nodes", goals={"mape": 15.0}, **fields)]
    for mode, part in goal.groupby("mode"):
        lines.append(_line(part, split=f"four nodes, {mode}", goals={"mape": 15.0}, **fields))
    for name, part in goal.groupby("split"):
        lines.append(_line(part, split=f"four nodes, {name}", points=True, **fields))
    for name, part in rows.drop(goal.index).groupby("split"):
        lines.append(_line(part, split=f"four nodes, {name}", points=True, **fields))
    still = goal.assign(predicted_us=goal["still_us"]).drop(columns=["band_low_us", "band_high_us"])
    lines.append(_line(still, split="four nodes, two nodes' barrier", **fields | {"held_out": STILL}))
    for name, part in other_clusters().groupby("split"):
        lines.append(_line(part, split=name, method="calibrated", held_out=CLUSTERS, points=True))
    return lines


def _unmeasured() -> list[ValidationRow]:
    lines, known = [], {*measured_parts(), *near_parts()}
    for name in names("hardware"):
        part = load_hardware(name)
        if name in known or part.device == "cpu":
            continue
        fit = part.measured_all_to_all is not None
        told = "a published latency and bandwidth alone" if fit else "no exchange timed on it is in the tables"
        lines.append(
            ValidationRow(
                section=SECTION, method="transfer", split="none", hardware=name, count=0,
                held_out=f"{part.vendor} {name}: unvalidated, {told}",
            )
        )  # fmt: skip
    return lines


def _both(frame: pd.DataFrame, *, name: str, goals: Goals | None = None, **fields: str) -> list[ValidationRow]:
    """Interior points, and apart from them the two ends of each curve."""
    inside, ends = frame[~frame["is_end"]], frame[frame["is_end"]]
    return [
        _line(inside, split=name, goals=goals, points=True, **fields),
        _line(ends, split=f"{name}, ends of the curve", points=True, **fields),
    ]


def _line(
    frame: pd.DataFrame, *, split: str, goals: Goals | None = None, points: bool = False, **fields: str
) -> ValidationRow:
    return line(frame, goals=goals, points=points, section=SECTION, split=split, **fields)


def _banded(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with the band of each curve's inner or end points, made of those of all other curves."""
    ratio, curve, ends = (measured_over_predicted(frame).to_numpy(), frame["curve"].to_numpy(), frame["is_end"])
    band = np.full((len(frame), 2), np.nan)
    for is_end in (False, True):
        for name in np.unique(curve):
            mine, others = (curve == name) & (ends == is_end), (curve != name) & (ends == is_end)
            band[mine] = np.quantile(ratio[others], QUANTILES)
    low, high = frame["predicted_us"] * band[:, 0], frame["predicted_us"] * band[:, 1]
    return frame.assign(band_low_us=low, band_high_us=high)
