"""The time of a layer's local kernels by the best method there is: measured, published, calibrated, else roofline.

- ``measured``: records of this product on this GPU, interpolated between token counts (``interpolation``).
- ``published``: rows that others published for this kernel, shape and parallelism, interpolated.
- ``calibrated``: the constants of the kernel's family alone (``kernel_model``), for shapes without rows.
- ``roofline``: speed of light (``compute``); None here.

Rows and constants of another GPU stand in by its peaks, said so and with a wider band.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log

import numpy as np
import pandas as pd

from workbench.simulate.calibration_files import calibration_dir
from workbench.simulate.families import (
    Band,
    Family,
    bands,
    find_families,
    is_near,
    is_recipe,
    priced_kernels,
    widened,
)  # fmt: skip
from workbench.simulate.interpolation import Curve, curve_of
from workbench.simulate.kernel_model import Number, Peaks, Work, layer_us, least_us, peaks_of
from workbench.simulate.layer_rows import Layer, carried_rows, installed_rows, own_rows
from workbench.simulate.published_moe import BEHIND_DISPATCH, peaks_over, work_over
from workbench.spec.cluster import Hardware
from workbench.spec.errors import Unsupported
from workbench.spec.precision import Precision

SOURCES_BY_DISPATCH = {
    "none": (), "low_latency": ("deepep_generation", "wideep"), "other": ("deepep_context", "wideep"),
}  # fmt: skip
METHODS = ("measured", "published", "calibrated")


@dataclass(frozen=True)
class Estimator:
    """One family, with its rows' curve where there is one, ready for the work of a cell's ranks.

    ``knows_shape``: the constants were fitted to rows of this shape; ``knows_ep``: the curve's rows are of this degree
    of expert parallelism.
    """

    method: str
    family: Family
    curve: Curve | None
    peaks: Peaks
    transferred_from: str | None
    near: bool
    knows_shape: bool
    knows_ep: bool

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
        modelled = self.family.band
        if not self.knows_shape:
            unseen = tuple(known.get("unseen_shape_by_kernel", {}).get(self.family.kernel, known["unseen_shape"]))
            modelled = widened(modelled, unseen) if self.family.between else unseen
        if self.transferred_from is not None:
            return widened(modelled, tuple(bands()["transfer"]["near" if self.near else "far"]))
        if self.curve is None:
            return modelled
        inside = self.curve.is_inside(log(max(rows_per_expert, 1e-9)))
        between = self.family.between or tuple(known["between_points"])
        if not inside:
            between = widened(between, tuple(known["beyond_ends"]))
        return between if self.knows_ep else widened(between, modelled)


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
    families = _fitting(families, query.layer.dispatch)
    peaks = peaks_of(query.hardware, precision)
    near = source is not None and is_near(source, query.hardware)
    found = [_estimator(family, query.layer, query.hardware, peaks, source=source, near=near) for family in families]
    wanted = METHODS if query.method == "best" else (query.method,)
    for method in wanted:
        of_method = tuple(one for one in found if one.method == method)
        if of_method:
            return of_method
    if query.method == "calibrated":
        return tuple(_without_curve(one) for one in found)
    return ()


def _fitting(families: tuple[Family, ...], dispatch: str) -> tuple[Family, ...]:
    """Kernels made for what a dispatch brings where there is one, of the right mode; the others where there is none, or
    where the kernel has no such rows."""
    wanted = SOURCES_BY_DISPATCH[dispatch]
    behind = tuple(family for family in families if family.source in wanted)
    return behind or tuple(family for family in families if family.source not in BEHIND_DISPATCH)


def _without_curve(one: Estimator) -> Estimator:
    return replace(one, method="calibrated", curve=None)


def _estimator(
    family: Family, layer: Layer, hardware: Hardware, peaks: Peaks, *, source: str | None, near: bool
) -> Estimator:
    rows = installed_rows(family, layer, hardware.name) if family.kind == "published" else None
    if rows is not None:
        source = None
    elif family.kind == "published":
        rows = carried_rows(family, layer)
    else:
        rows = own_rows(family, layer)
    curve = _curve(family, layer, rows)
    method = "calibrated"
    if curve is not None and family.kind == "published":
        method = "published"
    elif curve is not None and source is None:
        method = "measured"
    same_ep = curve is not None and bool(rows["ep"].eq(layer.ep).any())
    return Estimator(method, family, curve, peaks, source, near, layer.shape in family.shapes, same_ep)


def _curve(family: Family, layer: Layer, rows: pd.DataFrame | None) -> Curve | None:
    if rows is None or rows["tokens"].nunique() < 2:
        return None
    modelled_us = layer_us(family.constants, work_over(rows), peaks_over(rows))
    rows_per_expert = rows["tokens"].to_numpy(float) * layer.top_k / layer.num_experts
    return curve_of(np.log(rows_per_expert), rows["us"].to_numpy(float), modelled_us)
