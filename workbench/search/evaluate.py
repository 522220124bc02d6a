"""One candidate priced by the models that ``run`` uses, with what the goal asks of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.simulate.experts import Choice, choice_of
from workbench.simulate.layer import LayerCost, price_layer
from workbench.simulate.memory import GIB, MemoryFit, layer_fit, model_fit
from workbench.simulate.model import ModelStep, moe_cell, price_step
from workbench.simulate.offload import with_offload
from workbench.simulate.serving import Rates, price_serving, serving_fits
from workbench.simulate.support import unsupported_reason
from workbench.simulate.traffic import group_traffic, part_traffics
from workbench.spec.errors import SpecError, Unsupported
from workbench.spec.scenario import Cell, Goal

OK, OVER, UNFIT, UNSUPPORTED, REFUSED = "ok", "over_limit", "infeasible", "unsupported", "refused"
RANKS = {OK: 0, OVER: 1, UNFIT: 2, UNSUPPORTED: 3, REFUSED: 4}
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Figures:
    """What a priced candidate delivers; ``parts_us`` are of its step, ``band`` the 80% range of the step over its
    estimate (1, 1 where nothing is known of its error)."""

    tokens_per_s: float
    gpus: int
    step_us: float
    ttft_us: float | None
    tpot_us: float | None
    usd_per_hour: float | None
    memory_bytes: int
    method: str
    band: tuple[float, float]
    parts_us: Mapping[str, float]

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus

    @property
    def tokens_per_s_per_user(self) -> float | None:
        return 1e6 / self.tpot_us if self.tpot_us else None

    @property
    def gpu_us_per_token(self) -> dict[str, float]:
        """Microseconds of one GPU that a token costs, by part."""
        whole_us = sum(self.parts_us.values())
        scale = 1e6 / self.tokens_per_s_per_gpu / whole_us if whole_us and self.tokens_per_s else 0.0
        return {name: us * scale for name, us in self.parts_us.items()}

    @property
    def tokens_per_usd(self) -> float | None:
        return self.tokens_per_s * SECONDS_PER_HOUR / self.usd_per_hour if self.usd_per_hour else None


@dataclass(frozen=True)
class Candidate:
    """A choice and how it ended; ``value`` is what the goal maximises, ``beyond`` by what factor a limit is passed."""

    settings: Mapping[str, Any]
    status: str
    reason: str = ""
    figures: Figures | None = None
    value: float = 0.0
    beyond: float = 0.0
    cell: Cell | None = field(default=None, compare=False)

    @property
    def score(self) -> tuple[int, float, float, int]:
        """More is better: what can run before what cannot, what keeps the limits before what does not, few GPUs."""
        return (-RANKS[self.status], -self.beyond, self.value, -self.figures.gpus if self.figures else 0)

    @property
    def range(self) -> tuple[float, float]:
        """The value at both ends of the step's band."""
        low, high = self.figures.band if self.figures else (1.0, 1.0)
        return self.value / high, self.value / low


@dataclass(frozen=True)
class Pricer:
    """Prices cells for one goal; steps that several candidates share are priced once."""

    goal: Goal
    max_layers: int = 1
    steps: dict[tuple[str, int], ModelStep] = field(default_factory=dict)

    def price(self, cell: Cell, settings: Mapping[str, Any]) -> Candidate:
        """The candidate of a cell."""
        try:
            reason = unsupported_reason(cell) or _idle(cell)
            if reason is not None:
                raise Unsupported(reason)
            return self._priced(cell, settings)
        except Unsupported as exception:
            return Candidate(settings, UNSUPPORTED, exception.reason, cell=cell)
        except (SpecError, ValueError) as exception:
            return Candidate(settings, UNSUPPORTED, str(exception), cell=cell)

    def _priced(self, cell: Cell, settings: Mapping[str, Any]) -> Candidate:
        whole = cell.scope.kind == "model"
        if whole and not model_fit(cell).fits:
            return _unfit(cell, settings, {"": model_fit(cell)})
        fits = serving_fits(cell) if whole else {"": layer_fit(cell, group_traffic(cell))[0]}
        if not all(fit.fits for fit in fits.values()):
            return _unfit(cell, settings, fits)
        figures = (self._model if whole else self._layer)(cell, fits)
        value = getattr(figures, self.goal.maximise)
        if value is None:
            raise Unsupported(f"goal.maximise {self.goal.maximise} is not known for scope {cell.scope.kind} here")
        over = tuple(_limits(self.goal, figures))
        reason = "; ".join(text for _, text in over)
        beyond = max((factor for factor, _ in over), default=0.0)
        return Candidate(settings, OVER if over else OK, reason, figures, value, beyond, cell)

    def _step(self, cell: Cell, *, max_layers: int) -> ModelStep:
        left_out = {"cell_id", "scenario", "group", "goal", "serving", "measure"}
        key = cell.model_dump_json(exclude=left_out), max_layers
        if key not in self.steps:
            self.steps[key] = price_step(cell, max_layers=max_layers)
        return self.steps[key]

    def _model(self, cell: Cell, fits: Mapping[str, MemoryFit]) -> Figures:
        rates = price_serving(cell, max_layers=self.max_layers, price=self._step)
        choice = choice_of(moe_cell(cell), group_traffic(moe_cell(cell)))
        return Figures(
            rates.tokens_per_s, rates.gpus, rates.latency_us, rates.ttft_us, rates.tpot_us, rates.usd_per_hour,
            max(fit.needed_bytes for fit in fits.values()), f"{choice.method}+roofline",
            _band(choice, rates.step), _model_parts(rates),
        )  # fmt: skip

    def _layer(self, cell: Cell, fits: Mapping[str, MemoryFit]) -> Figures:
        traffic = group_traffic(cell)
        cost = with_offload(cell, price_layer(cell, traffic, parts=part_traffics(cell)))
        choice, tokens = choice_of(cell, traffic), float(traffic.tokens_R.sum())
        gpus = cell.ep * cell.parallel.tp
        usd = cell.cluster.usd_per_gpu_hour
        parts = {name: us for name, us in cost.parts_us.items() if us} | {"hidden": -cost.hidden_us}
        return Figures(
            tokens / cost.latency_us * 1e6 if cost.latency_us else 0.0, gpus, cost.latency_us, None, None,
            usd * gpus if usd else None, fits[""].needed_bytes, choice.method,
            _band(choice, cost), parts,
        )  # fmt: skip


def _band(choice: Choice, cost: ModelStep | LayerCost) -> tuple[float, float]:
    """The latency's band over the latency: that of the experts' time and of the messages'."""
    if choice.band is None or not cost.latency_us:
        return 1.0, 1.0
    low, high = (
        1 + ((edge - 1) * cost.expert_us + shift) / cost.latency_us
        for edge, shift in zip(choice.band, cost.message_band_us, strict=True)
    )
    return max(0.0, low), high


def _model_parts(rates: Rates) -> dict[str, float]:
    step = rates.step
    names = ("compute", "quantise", "wire", "dispatch", "combine", "count_exchange", "tp_reduce")
    parts = {f"moe {name}": step.part(name) for name in names}
    parts |= {
        "attention": step.attention_us, "dense": step.dense_us + step.head_us, "attention reduce": step.reductions_us,
        "pipeline": step.hop_us, "optimizer": step.extra_us,
        "hidden": -step.hidden_us - step.layers_each * sum(cost.hidden_us for cost in step.moe),
    }  # fmt: skip
    if rates.tpot_us is not None:
        parts["prompts between steps"] = rates.tpot_us - rates.latency_us
    return {name: us for name, us in parts.items() if us}


def _idle(cell: Cell) -> str | None:
    """What a candidate asks for in vain: it is another one under a second name, or no layer at all."""
    alone = cell.dispatch.strategy == "none"
    if alone and cell.ep > 1:
        return f"dispatch.strategy none sends nothing to the experts of other ranks (parallel.ep {cell.ep})"
    if not alone and cell.ep == 1:
        return "all experts lie on one rank: dispatch.strategy none is the same"
    return None


def _unfit(cell: Cell, settings: Mapping[str, Any], fits: Mapping[str, MemoryFit]) -> Candidate:
    name, fit = max(fits.items(), key=lambda item: item[1].shortage_bytes)
    where = f"the {name} pool " if name else ""
    beyond = fit.needed_bytes / fit.capacity_bytes
    return Candidate(settings, UNFIT, f"does not fit: {where}{fit.text}", beyond=beyond, cell=cell)


def _limits(goal: Goal, figures: Figures) -> list[tuple[float, str]]:
    """Limits that are passed: the factor and the words."""
    asked = (
        ("ttft", goal.ttft_ms, figures.ttft_us and figures.ttft_us / 1e3, "ms"),
        ("tpot", goal.tpot_ms, figures.tpot_us and figures.tpot_us / 1e3, "ms"),
        ("GPUs", goal.max_gpus, figures.gpus, ""),
        ("memory", goal.max_memory and goal.max_memory / GIB, figures.memory_bytes / GIB, "GiB a GPU"),
    )
    return [
        (value / limit, f"{name} {value:.4g} {unit} over the limit of {limit:.4g}".replace("  ", " "))
        for name, limit, value, unit in asked
        if limit is not None and value is not None and value > limit
    ]
