"""The experts of a rank in its cell's precision, kept between the cells of a sweep."""

from functools import lru_cache
from typing import Any

import torch

from kernels.activation import Activation
from kernels.moe import ExpertWeights, prepare_weights
from kernels.recipes import Recipe, format_name
from workbench.run.inputs import CACHED_BYTES, expert_weights, weight_bytes
from workbench.spec.model import Model
from workbench.spec.precision import Precision
from workbench.spec.scenario import Cell

LARGEST_KEPT = 0.3
"""Share of a GPU's memory that experts may keep between cells."""


def recipe_of(precision: Precision) -> Recipe:
    """The kernels' recipe of a precision. Raises ValueError where no such format exists."""
    weights, inputs = precision.weights, precision.activations
    return Recipe(
        precision.name,
        format_name(weights.format, weights.granularity),
        format_name(inputs.format, inputs.granularity),
    )


def encode_experts(cell: Cell, experts: tuple[int, ...], *, device: torch.device, keep: bool = True) -> ExpertWeights:
    """Weights in the cell's precision. With ``keep`` the next cells of a sweep find small ones, and on a GPU the last
    large ones, instead of making them again."""
    model, precision = cell.model, cell.precision
    rule = None if precision.scale_rule == "none" else precision.scale_rule
    key = (model.model_dump_json(), experts, cell.workload.seed, device, recipe_of(precision), rule, precision.overflow)
    num_bytes = weight_bytes(model, len(experts))
    if keep and num_bytes <= CACHED_BYTES:
        return _cached_encode(*key)
    return _latest_encode(*key) if keep and device.type == "cuda" else _encode(*key)


def _latest_encode(*key: Any) -> ExpertWeights:
    """The last large experts made; others are let go first, so that there is never room for two of them needed."""
    kept = _latest()
    if key not in kept:
        kept.clear()
        made = _encode(*key)
        if made.nbytes > torch.cuda.get_device_properties(made.w13.data.device).total_memory * LARGEST_KEPT:
            return made
        kept[key] = made
    return kept[key]


@lru_cache(maxsize=1)
def _latest() -> dict[tuple, ExpertWeights]:
    return {}


def _encode(
    model_json: str,
    experts: tuple[int, ...],
    seed: int,
    device: torch.device,
    recipe: Recipe,
    scale_rule: str | None,
    overflow: str,
) -> ExpertWeights:
    model = Model.model_validate_json(model_json)
    raw = expert_weights(model, experts, seed=seed, device=device)
    return prepare_weights(
        raw.w13,
        raw.w2,
        precision=recipe,
        bias13=raw.bias13,
        bias2=raw.bias2,
        activation=Activation(**model.activation.model_dump()),
        scale_rule=scale_rule,
        overflow=overflow,
    )


_cached_encode = lru_cache(maxsize=8)(_encode)
