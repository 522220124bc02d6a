"""Rows of a layer that a family's curve is made of: own records, tables that come with the package, installed ones."""

from dataclasses import dataclass
from math import log

import pandas as pd

from workbench.simulate.aiconfigurator_tables import installed_layers
from workbench.simulate.calibration_files import read_records
from workbench.simulate.families import Family
from workbench.simulate.published import published
from workbench.simulate.published_moe import BEHIND_DISPATCH, FAMILY, THEIR_NAMES, renamed, wide_layers, with_work


@dataclass(frozen=True)
class Layer:
    """What decides which rows fit: sizes before the tensor-parallel split, the kind of routing (``skewed``), and the
    dispatch that brings a rank its tokens: ``none`` where it holds all that it computes, ``low_latency`` or ``other``.
    """

    hidden: int
    inter: int
    top_k: int
    num_experts: int
    tp: int
    ep: int
    skewed: bool
    dispatch: str = "none"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.hidden, self.inter, self.top_k, self.num_experts


def own_rows(family: Family, layer: Layer) -> pd.DataFrame:
    """Records of the shape; any expert parallelism, since the work of a rank is in the model."""
    frame = read_records()
    same = _same_shape(frame, layer) & frame["experts_alone"]
    for name in ("hardware", "kernel", "dtype"):
        same &= frame[name].eq(getattr(family, name))
    return frame[same]


def carried_rows(family: Family, layer: Layer) -> pd.DataFrame | None:
    """Rows of the shape and parallelism, behind a dispatch of the nearest degree of it, in the package's tables."""
    if layer.shape not in family.shapes:
        return None
    if family.source in BEHIND_DISPATCH:
        frame = wide_layers()
    else:
        frame = published("moe_layer")
        frame = frame[frame["hardware"].eq(THEIR_NAMES[family.hardware]) & frame["kernel_source"].eq(family.source)]
        frame = renamed(frame)
    same = _same_shape(frame, layer)
    for name in FAMILY:
        same &= frame[name].eq(getattr(family, name))
    frame = frame[same]
    ep = layer.ep
    if family.source in BEHIND_DISPATCH and len(frame):
        # What a rank does there depends on its own experts and pairs alone, which are in the model.
        ep = min(frame["ep"].unique(), key=lambda degree: abs(log(degree / layer.ep)))
    return _usable(frame[frame["ep"].eq(ep)], layer)


def installed_rows(family: Family, layer: Layer, hardware: str) -> pd.DataFrame | None:
    """Rows of the family's kernel on the cell's own GPU in the tables that the user installed."""
    if hardware not in THEIR_NAMES:
        return None
    system = THEIR_NAMES[hardware]
    frame = installed_layers(system, family.kernel, family.dtype, family.source, layer.shape, layer.tp, layer.ep)
    return None if frame is None else _usable(renamed(frame), layer)


def _usable(frame: pd.DataFrame, layer: Layer) -> pd.DataFrame:
    """Rows below the peak; of skewed ones alone for skewed routing.

    Even routing takes the mean of all distributions: what the model misses is much the same for each.
    """
    if layer.skewed:
        frame = frame[frame["distribution"].ne("balanced")]
    frame = frame.reset_index(drop=True)
    frame = frame if "above_peak" in frame else with_work(frame)
    return frame[~frame["above_peak"]].reset_index(drop=True)


def _same_shape(frame: pd.DataFrame, layer: Layer) -> pd.Series:
    same = frame["tp"].eq(layer.tp)
    for name in ("hidden", "inter", "top_k", "num_experts"):
        same &= frame[name].eq(getattr(layer, name))
    return same
