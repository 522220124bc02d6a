"""Balance over the steps of a training: an auxiliary loss, or a bias of the router. E experts, k top-k.

Both act through the real routers on the workload's own tokens, step by step, so drift is followed or not. What a
training does besides to a router's weights is not modelled, but for ``reinforcement``.

- ``bias``: b_e += gamma * sign(mean load - load_e) after every step, where b shifts the scores that select and never
  the weights. Wang et al. 2024 (Auxiliary-Loss-Free Load Balancing), algorithm 1; DeepSeek-V3, section 2.1.2, with
  gamma 0.001.
- ``aux_loss``: a step down the gradient of E * sum_e f_e P_e over a shift s of the logits, f_e the share of all choices
  that are e (not differentiated) and P_e the mean softmax. Switch Transformer (Fedus et al. 2021), equations 4 to 6,
  with the mean-field gradient over s_e: E * P_e * (f_e - sum_j f_j P_j). The rate is the loss's coefficient times the
  learning rate; it sets the speed, and where drift is slow not the end.
- ``none``: nothing but drift and ``reinforcement``, by which the logit of an expert grows every step by that times
  (load_e - mean) / mean, at most 1 up or down: experts that are chosen learn and are chosen more (Shazeer et al. 2017,
  section 4).

``rate`` and ``reinforcement`` are fields of ``balance``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.loads import load_stats, slot_counts
from workbench.workload.steer import Steer
from workbench.workload.traffic import mean_scores, route_all

BIAS_RATE = 0.001
AUX_RATE = 1.0
MAX_STEPS = 4096
TRACED_STEPS = 24
_MAX_LOGITS = 1 << 18  # drawn for each step of a cell's training; of larger batches a sample


@dataclass(frozen=True)
class TrainingStep:
    """One step: tokens per expert int64 [E] before any capacity, ``max_vio`` of them, and the ``steer`` that they were
    routed with. ``bias_E`` is its bias, or for ``aux_loss`` and ``none`` its shift of the logits."""

    step: int
    loads_E: np.ndarray
    max_vio: float
    steer: Steer

    @property
    def bias_E(self) -> np.ndarray:
        """float64 [E]; zeros before the first update."""
        values = self.steer.bias or self.steer.shift
        return np.array(values) if values else np.zeros(self.loads_E.size)


def training_steps(
    cell: Cell, *, layer: int = 0, steps: int | None = None, rate: float | None = None,
    reinforcement: float | None = None, start: TrainingStep | None = None, max_tokens: int | None = None,
) -> Iterator[TrainingStep]:  # fmt: skip
    """Steps of ``cell.balance.training``, as many as ``steps`` or ``workload.steps``; step s is routed with what the s
    before it have made of the router.

    ``rate`` is gamma or the auxiliary loss's, both it and ``reinforcement`` the cell's if left out. ``max_tokens`` of
    each rank are routed, and with ``start`` it goes on from that step instead of step 0 with no steer. Raises
    Unsupported for routers that cannot be steered.
    """
    plain = cell.model_copy(update={"balance": cell.balance.model_copy(update={"capacity": None})})
    rate = cell.balance.rate if rate is None else rate
    reinforcement = cell.balance.reinforcement if reinforcement is None else reinforcement
    steer = Steer() if start is None else start.steer
    first = 0 if start is None else start.step
    for step in range(first, first + (cell.workload.steps if steps is None else steps)):
        place = {"layer": layer, "step": step, "max_tokens": max_tokens, "steer": steer}
        loads = slot_counts(route_all(plain, **place).ids, cell.model.num_experts)
        yield TrainingStep(step, loads, load_stats(loads).max_vio or 0.0, steer)
        if cell.balance.training == "bias":
            steer = replace(steer, bias=_added(steer.bias, bias_update(loads, BIAS_RATE if rate is None else rate)))
        elif cell.balance.training == "aux_loss":
            down = aux_gradient(loads, mean_scores(plain, **place)) * -(AUX_RATE if rate is None else rate)
            steer = replace(steer, shift=_added(steer.shift, down))
        if reinforcement:
            steer = replace(steer, shift=_added(steer.shift, reinforcement * _excess(loads)))


def bias_update(loads: np.ndarray, gamma: float) -> np.ndarray:
    """gamma * sign(mean - load), float64 [E]: up for those that had too few, down for too many."""
    return gamma * np.sign(loads.mean() - loads)


def aux_gradient(loads: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """d(E * sum f_e P_e) / d(shift), float64 [E], from loads and mean softmax scores [E]."""
    shares = loads / max(1, loads.sum())
    return loads.size * scores * (shares - (shares * scores).sum())


def is_trained(cell: Cell) -> bool:
    """Whether the router changes over the cell's steps, by balancing or by reinforcement."""
    return cell.balance.training != "none" or cell.balance.reinforcement > 0


def judged_step(cell: Cell) -> int:
    """The step that a layer is measured and priced at: of a router that is trained the last one, before which the
    others have changed it, else the first."""
    return cell.workload.steps - 1 if is_trained(cell) else 0


def training_flags(cell: Cell) -> list[str]:
    """``trained_steps=9``: steps before the judged one, of a cell whose router is trained."""
    return [f"trained_steps={judged_step(cell)}"] if is_trained(cell) and cell.model is not None else []


def reached(cell: Cell, *, layer: int = 0) -> Steer | None:
    """What training has made of the router when the last step of ``workload.steps`` begins; None without training.
    Raises Unsupported for more than ``MAX_STEPS`` steps."""
    return traced_steps(cell, layer=layer)[-1].steer if is_trained(cell) else None


def traced_steps(cell: Cell, *, layer: int = 0) -> tuple[TrainingStep, ...]:
    """At most ``TRACED_STEPS`` of the cell's training, evenly apart, the first and the last among them; of large
    batches a sample is routed. Raises Unsupported for more than ``MAX_STEPS`` steps."""
    if cell.workload.steps > MAX_STEPS:
        raise Unsupported(f"workload.steps: {cell.workload.steps} with balance.training; at most {MAX_STEPS} are run")
    balance = cell.balance
    key = (
        cell.model.model_dump_json(include={"num_experts", "top_k", "router"}), cell.router.model_dump_json(),
        cell.workload.model_dump_json(exclude={"data"}), (balance.training, balance.rate, balance.reinforcement),
        cell.ep, cell.trace_digest, layer,
    )  # fmt: skip
    return _traced(_Query(key, layer, cell))


@dataclass(frozen=True)
class _Query:
    key: tuple
    layer: int
    cell: Cell = field(compare=False)


@lru_cache(maxsize=64)
def _traced(query: _Query) -> tuple[TrainingStep, ...]:
    cell = query.cell
    tokens = max(1, _MAX_LOGITS // (cell.ep * cell.model.num_experts))
    steps = cell.workload.steps
    kept = set(np.linspace(0, steps - 1, min(steps, TRACED_STEPS)).round().astype(int).tolist())
    every = training_steps(cell, layer=query.layer, max_tokens=tokens)
    return tuple(step for step in every if step.step in kept)


def _added(values: tuple[float, ...], update: np.ndarray) -> tuple[float, ...]:
    return tuple(((np.array(values) if values else 0.0) + update).tolist())


def _excess(loads: np.ndarray) -> np.ndarray:
    mean = loads.mean()
    return np.clip((loads - mean) / mean, -1.0, 1.0) if mean else np.zeros(loads.size)
