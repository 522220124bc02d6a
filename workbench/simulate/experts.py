"""The expert stages of a cell at the time of the best method, or of the one the cell forces.

The stages permute, quantise, gemm1, activation, gemm2 and unpermute are one block here: rows and constants time them
together (``published_moe`` says what else their publishers put in), so each stage keeps its share of the roofline and
the block gets the estimate. Gate, shared expert, copies beside exchanges, messages and the backward keep their own.
"""

from dataclasses import dataclass, replace

import numpy as np

from workbench.simulate.compute import Rates, Stage
from workbench.simulate.estimate import Estimator, find_estimators
from workbench.simulate.families import Band
from workbench.simulate.kernel_model import Work, work_of
from workbench.simulate.layer_rows import Layer
from workbench.simulate.traffic import GroupTraffic
from workbench.spec.scenario import Cell

ESTIMATED_SCOPES = ("layer", "layer_no_router", "model")
EVEN_SKEWS = ("uniform", "balanced")
HOLDS_ALL_TOKENS = "allgather_reduce_scatter"


@dataclass(frozen=True)
class Choice:
    """What priced a cell's experts: the method's name, its band, the kernel's version and what else must be said."""

    method: str
    band: Band | None
    version: str | None
    flags: tuple[str, ...]


def estimators_of(cell: Cell) -> tuple[Estimator, ...]:
    """Estimators for the cell; empty where its stages are priced by the roofline.

    Raises Unsupported when the cell forces a method that has nothing to work with.
    """
    model = cell.model
    if model is None or cell.scope.kind not in ESTIMATED_SCOPES:
        return ()
    skewed = cell.workload.skew.kind not in EVEN_SKEWS
    layer = Layer(
        model.hidden, model.moe_intermediate, model.top_k, model.num_experts, cell.parallel.tp, cell.ep, skewed,
        dispatch=_dispatch(cell),
    )  # fmt: skip
    return find_estimators(
        cell.cluster.hardware, kernel=cell.kernel, precision=cell.precision, layer=layer, method=cell.method
    )


def _dispatch(cell: Cell) -> str:
    strategy = cell.dispatch.strategy
    if cell.ep == 1 or strategy in ("none", HOLDS_ALL_TOKENS):
        return "none"
    return "low_latency" if strategy == "low_latency" else "other"


def price_experts(cell: Cell, traffic: GroupTraffic, stages: tuple[Stage, ...], *, rates: Rates) -> tuple[Stage, ...]:
    """``stages`` with each rank's sum made what the estimate says of it."""
    estimators = estimators_of(cell)
    if not estimators:
        return stages
    durations = [stage.duration_us_R(rates) for stage in stages]
    _, us_R = _fastest(estimators, cell, traffic)
    factor_R = us_R / np.sum(durations, axis=0)
    return tuple(replace(stage, us_R=us_R_ * factor_R) for stage, us_R_ in zip(stages, durations, strict=True))


def _fastest(estimators: tuple[Estimator, ...], cell: Cell, traffic: GroupTraffic) -> tuple[Estimator, np.ndarray]:
    """The version of the kernel whose slowest rank is done first, and the time of each rank."""
    work, rows = expert_work(cell, traffic), rows_per_expert(cell, traffic)
    timed = [(one, one.us(work, rows_per_expert=rows)) for one in estimators]
    return min(timed, key=lambda pair: float(np.max(pair[1])))


def expert_work(cell: Cell, traffic: GroupTraffic) -> Work:
    """Work of each rank. Only where every rank holds all tokens are there pairs that it passes over."""
    model = cell.model
    assert model is not None
    others_R = np.zeros(traffic.num_ranks)
    if cell.dispatch.strategy == HOLDS_ALL_TOKENS:
        others_R = np.maximum(0.0, traffic.buffer_rows_R * model.top_k - traffic.pairs_R)
    return work_of(
        cell.precision,
        hidden=model.hidden,
        intermediate=-(-model.moe_intermediate // cell.parallel.tp),
        pairs=traffic.pairs_R,
        touched=traffic.touched_R,
        others=others_R,
    )


def rows_per_expert(cell: Cell, traffic: GroupTraffic) -> float:
    """Mean pairs of an expert over the group, by which points of a curve are found."""
    assert cell.model is not None
    return float(traffic.tokens_R.sum()) * cell.model.top_k / cell.model.num_experts


def choice_of(cell: Cell, traffic: GroupTraffic) -> Choice:
    """How the cell's expert stages are priced under ``traffic``."""
    estimators = estimators_of(cell)
    if not estimators:
        return Choice("roofline", None, None, ())
    one, _ = _fastest(estimators, cell, traffic)
    flags = ["band_of_experts_and_messages"]
    if one.transferred_from is not None:
        flags.append(f"transferred_from={one.transferred_from}")
        if not one.near:
            flags.append("unvalidated_hardware")
    return Choice(
        one.method, one.band(rows_per_expert=rows_per_expert(cell, traffic)), one.family.version, tuple(flags)
    )
