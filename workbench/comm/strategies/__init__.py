"""Strategies by name. Each turns slots int32 [R, T, K] (-1 = dropped) and weights float32 [R, T, K] into a plan."""

from collections.abc import Callable

from workbench.balance.capacity import require_dropless
from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.flat import flat
from workbench.comm.strategies.node_dedup import node_dedup
from workbench.comm.strategies.stay import stay
from workbench.comm.topology import topology_of
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.traffic import RoutedTraffic

STRATEGIES: dict[str, Callable[..., DispatchPlan]] = {"none": stay, "flat": flat, "node_dedup": node_dedup}


def make_plan(cell: Cell, traffic: RoutedTraffic, expert_map: ExpertMap) -> DispatchPlan:
    """The plan of the cell's strategy for this traffic and placement.

    Raises Unsupported for a strategy that is not there, or a capacity.
    """
    require_dropless(cell)
    build = strategy_of(cell)
    slots = to_slots(expert_map, traffic.ids)
    return build(slots, traffic.weights, slots_per_rank=expert_map.slots_per_rank, topology=topology_of(cell))


def strategy_of(cell: Cell) -> Callable[..., DispatchPlan]:
    """The cell's strategy, or Unsupported."""
    name = cell.dispatch.strategy
    if name not in STRATEGIES:
        raise Unsupported(f"dispatch.strategy: {name} is not there yet; known: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
