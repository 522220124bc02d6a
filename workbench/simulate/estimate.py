"""The time of a layer's local kernels by the best method there is: measured, published, calibrated, else roofline.

- ``measured``: records of this product on this GPU, interpolated between token counts (``interpolation``).
- ``published``: rows that others published for this kernel, shape and parallelism, interpolated.
- ``calibrated``: the constants of the kernel's family alone (``kernel_model``), for shapes without rows.
- ``roofline``: speed of light (``compute``); None here.

Rows and constants of another GPU stand in by its peaks, said so and with a wider band.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import log

import numpy as np

from workbench.simulate.calibration_files import calibration_dir, read_records
from workbench.simulate.families import (
    Band,
    Family,
    bands,
    family_peaks,
    find_families,
    is_near,
    is_recipe,
    priced_kernels,
    widened,
)  # fmt: skip
from workbench.simulate.interpolation import Curve, curve_of
from workbench.simulate.kernel_model import Number, Peaks, Work, layer_us, least_us, peaks_of
from workbench.simulate.published import published
from workbench.simulate.published_moe import HARDWARE, peaks_over, renamed, with_work, work_over
from workbench.spec.cluster import Hardware
from workbench.spec.errors import Unsupported
from workbench.spec.precision import Precision

METHODS = ("measured", "published", "calibrated")


@dataclass(frozen=True)
class Layer:
    """What decides which rows fit: sizes before the tensor-parallel split, and the kind of routing (``skewed``)."""

    hidden: int
    inter: int
    top_k: int
    num_experts: int
    tp: int
    ep: int
    skewed: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.hidden, self.inter, self.top_k, self.num_experts


@dataclass(frozen=True)
class Estimator:
    """One family, with its rows' curve where there is one, ready for the work of a cell's ranks."""

    method: str
    family: Family
    curve: Curve | None
    peaks: Peaks
    transferred_from: str | None
    near: bool
    knows_shape: bool

    def us(self, work: Work, *, rows_per_expert: float) -> Number:
        """Microseconds of the work, never less than the part's peaks allow; a GPU without pairs does nothing."""
        factor = self.curve.factor(log(max(rows_per_expert, 1e-9))) if self.curve else 1.0
        modelled = factor * layer_us(self.family.constants, work, self.peaks)
        if isinstance(modelled, float):
            return max(modelled, *least_us(work, self.peaks)) if work.pairs else 0.0
        floor = np.maximum(*least_us(work, self.peaks))
        return np.where(np.asarray(work.pairs) > 0, np.maximum(modelled, floor), 0.0)

    def band(self, *, rows_per_expert: float) -> Band:
        """Measured over estimated time: where 80% of held-out rows lay."""
        known = bands()[self.family.kind]
        if self.curve is not None:
            inside = self.curve.is_inside(log(max(rows_per_expert, 1e-9)))
            own = tuple(known["between_points" if inside else "beyond_ends"])
        else:
            own = self.family.band if self.knows_shape else tuple(known["unseen_shape"])
        if self.transferred_from is None:
            return own
        return widened(own, tuple(bands()["transfer"]["near" if self.near else "far"]))


@dataclass(frozen=True)
class _Query:
    """Hardware has no hash of its own, so what of it decides stands here too."""

    calibration: str
    hardware: Hardware
    kernel: str
    precision: str
    layer: Layer
    method: str

    def __hash__(self) -> int:
        return hash((self.calibration, self.hardware.name, self.kernel, self.precision, self.layer, self.method))


def find_estimators(
    hardware: Hardware, *, kernel: str, precision: Precision, layer: Layer, method: str = "best"
) -> tuple[Estimator, ...]:
    """Estimators of one method, one for every version of the kernel; the fastest of them is what would be run.

    Empty means roofline: asked for, or all that is left for ``best``. Raises Unsupported when ``method`` is asked for
    and there is nothing to do it with.
    """
    if method == "roofline":
        return ()
    found: tuple[Estimator, ...] = ()
    if is_recipe(precision):
        query = _Query(str(calibration_dir()), hardware, kernel, precision.name, layer, method)
        found = _cached(query, precision)
    if not found and method != "best":
        what = {"measured": "record of this product", "published": "published row", "calibrated": "constants"}[method]
        raise Unsupported(
            f"method {method}: no {what} for kernel {kernel} in {precision.name} on {hardware.name} "
            f"at this shape; best falls back to what there is (kernels known: {', '.join(priced_kernels())})"
        )
    return found


@lru_cache(maxsize=4096)
def _cached(query: _Query, precision: Precision) -> tuple[Estimator, ...]:
    families, source = find_families(query.hardware, query.kernel, precision)
    peaks = peaks_of(query.hardware, precision)
    near = source is not None and is_near(source, query.hardware)
    found = [_estimator(family, query.layer, peaks, source=source, near=near) for family in families]
    wanted = METHODS if query.method == "best" else (query.method,)
    for method in wanted:
        of_method = tuple(one for one in found if one.method == method)
        if of_method:
            return of_method
    if query.method == "calibrated":
        return tuple(_without_curve(one) for one in found)
    return ()


def _without_curve(one: Estimator) -> Estimator:
    return Estimator("calibrated", one.family, None, one.peaks, one.transferred_from, one.near, one.knows_shape)


def _estimator(family: Family, layer: Layer, peaks: Peaks, *, source: str | None, near: bool) -> Estimator:
    curve = _curve(family, layer)
    method = "calibrated"
    if curve is not None and family.kind == "published":
        method = "published"
    elif curve is not None and source is None:
        method = "measured"
    return Estimator(method, family, curve, peaks, source, near, layer.shape in family.shapes)


def _curve(family: Family, layer: Layer) -> Curve | None:
    frame = _own_rows(family, layer) if family.kind == "own" else _published_rows(family, layer)
    if frame is None or frame["tokens"].nunique() < 2:
        return None
    modelled_us = layer_us(family.constants, work_over(frame), peaks_over(frame))
    rows = frame["tokens"].to_numpy(float) * layer.top_k / layer.num_experts
    return curve_of(np.log(rows), frame["us"].to_numpy(float), modelled_us)


def _own_rows(family: Family, layer: Layer):
    """Records of the shape; any expert parallelism, since the work of a rank is in the model."""
    frame = read_records()
    same = _same_shape(frame, layer) & frame["experts_alone"]
    for name in ("hardware", "kernel", "dtype"):
        same &= frame[name].eq(getattr(family, name))
    return frame[same]


def _published_rows(family: Family, layer: Layer):
    """Rows of the shape and parallelism, those above the peak left out; of skewed ones alone for skewed routing.

    Even routing takes the mean of all distributions: what the model misses is much the same for each.
    """
    if layer.shape not in family.shapes:
        return None
    theirs = {ours: name for name, ours in HARDWARE.items()}
    frame = published("moe_layer")
    frame = frame[frame["hardware"].eq(theirs[family.hardware]) & frame["kernel_source"].eq(family.source)]
    frame = renamed(frame)
    same = _same_shape(frame, layer) & frame["ep"].eq(layer.ep) & frame["dtype"].eq(family.dtype)
    same &= frame["version"].eq(family.version) & frame["kernel"].eq(family.kernel)
    if layer.skewed:
        same &= frame["distribution"].ne("balanced")
    frame = with_work(frame[same].reset_index(drop=True))
    return frame[~frame["above_peak"]].reset_index(drop=True)


def _same_shape(frame, layer: Layer):
    same = frame["tp"].eq(layer.tp)
    for name in ("hidden", "inter", "top_k", "num_experts"):
        same &= frame[name].eq(getattr(layer, name))
    return same


__all__ = ["METHODS", "Estimator", "Family", "Layer", "family_peaks", "find_estimators"]
