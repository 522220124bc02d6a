"""A planned cell through the simulator to its record; every cell ends, whatever it asks.

``method`` is how the routed experts were priced: ``measured``, ``published``, ``calibrated`` or ``roofline``, the best
that there is for the cell unless it forces one (``workbench.simulate.experts``). The band on the record is that of the
expert stages; other stages and messages stand in it as they are.
"""

from workbench.balance.dynamics import is_trained, judged_step
from workbench.run.describe import Shortage, failed, infeasible, unsupported
from workbench.run.offload_fields import host_does_not_fit
from workbench.run.simulated_layer import layer_outcome
from workbench.run.simulated_micro import micro_outcome
from workbench.run.simulated_model import model_outcome
from workbench.simulate.experts import choice_of
from workbench.simulate.layer import LayerCost, price_layer
from workbench.simulate.memory import MemoryFit, layer_fit
from workbench.simulate.offload import host_shortage_bytes, with_offload
from workbench.simulate.support import PRICED_SCOPES, unsupported_reason
from workbench.simulate.traffic import group_traffic, part_traffics
from workbench.spec.errors import Unsupported
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell

ROOFLINE = "roofline"
MAX_PRICED_BATCHES = 8
"""Layers times steps whose routing is drawn; more are represented by the first, and flagged."""


def run_simulated(cell: Cell) -> Outcome:
    """Price the cell: ``ok`` with its method, and its band unless that is ``roofline``; or unsupported, infeasible or
    error.

    ``latency_us`` covers all ``workload.layers`` layers and is the median over steps; with ``balance.training`` that of
    the last step.
    """
    reason = unsupported_reason(cell)
    if reason is not None:
        return unsupported(cell, reason, engine="simulate", method=_forced(cell))
    try:
        return _priced(cell)
    except Unsupported as exception:
        return unsupported(cell, exception.reason, engine="simulate", method=_forced(cell))
    except Exception as exception:  # a cell must end as a record, and the sweep must go on
        return failed(cell, f"{type(exception).__name__}: {exception}", engine="simulate", method=_forced(cell))


def _priced(cell: Cell) -> Outcome:
    if cell.scope.kind == "model":
        return model_outcome(cell)
    if cell.scope.kind not in PRICED_SCOPES:
        return micro_outcome(cell, method=ROOFLINE)
    traffic = group_traffic(cell, step=_priced_steps(cell)[0])
    fit, worst = layer_fit(cell, traffic)
    if not fit.fits:
        return does_not_fit(cell, fit, rank=worst)
    if host_shortage_bytes(cell, layers=cell.workload.layers):
        return host_does_not_fit(cell, layers=cell.workload.layers)
    steps, choice = price_steps(cell), choice_of(cell, traffic)
    return layer_outcome(cell, steps, first=traffic, fit=fit, worst_memory_rank=worst, choice=choice)


def _forced(cell: Cell) -> str | None:
    """The method of a cell that was not priced: the one that it forces."""
    return None if cell.method == "best" else cell.method


def does_not_fit(cell: Cell, fit: MemoryFit, *, rank: int, engine: str = "simulate") -> Outcome:
    """The infeasible outcome of a cell whose rank ``rank`` lacks memory; no latency in it."""
    shortage = Shortage(weight_bytes=fit.weight_bytes, needed_bytes=fit.needed_bytes, capacity_bytes=fit.capacity_bytes)
    return infeasible(cell, f"rank {rank} {fit.text}", engine=engine, method=_forced(cell), shortage=shortage)


def price_steps(cell: Cell) -> list[list[LayerCost]]:
    """Costs by step, then layer, of at most MAX_PRICED_BATCHES distinct routings."""
    layers = range(min(cell.workload.layers, MAX_PRICED_BATCHES))
    return [[_price(cell, layer, step) for layer in layers] for step in _priced_steps(cell)]


def _priced_steps(cell: Cell) -> range:
    """The first steps; with ``balance.training`` the last one alone, before which the others have balanced."""
    steps = cell.workload.steps
    if is_trained(cell):
        return range(judged_step(cell), steps)
    return range(min(steps, max(1, MAX_PRICED_BATCHES // min(cell.workload.layers, MAX_PRICED_BATCHES))))


def _price(cell: Cell, layer: int, step: int) -> LayerCost:
    where = {"layer": layer, "step": step}
    cost = price_layer(cell, group_traffic(cell, **where), parts=part_traffics(cell, **where))
    return with_offload(cell, cost, layer=layer)
