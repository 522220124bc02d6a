"""Strategies by name. Each turns slots int32 [R, T, K] (-1 = dropped) and weights float32 [R, T, K] into a plan."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

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


def make_plan(
    cell: Cell, traffic: RoutedTraffic, expert_map: ExpertMap, *, slots: np.ndarray | None = None
) -> DispatchPlan:
    """The plan of the cell's strategy for this traffic and placement.

    ``slots``: those that the pairs were dealt to already, where the traffic is a part of a larger one. Raises
    Unsupported for a strategy that is not there.
    """
    build = strategy_of(cell)
    slots = to_slots(expert_map, traffic.ids) if slots is None else slots
    return build(slots, traffic.weights, slots_per_rank=expert_map.slots_per_rank, topology=topology_of(cell))


def strategy_of(cell: Cell) -> Callable[..., DispatchPlan]:
    """The cell's strategy, or Unsupported."""
    name = cell.dispatch.strategy
    if name not in STRATEGIES:
        raise Unsupported(f"dispatch.strategy: {name} is not there yet; known: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def all_to_all_plan(cell: Cell) -> tuple[DispatchPlan, int]:
    """The bare exchange of ``scope: all_to_all``: an equal block to every rank, and the bytes of a block.

    A rank sends R rows of ceil(bytes_per_rank / R) bytes, its own among them; no metadata rides along.
    """
    ranks = cell.ep
    slots = np.tile(np.arange(ranks, dtype=np.int32)[None, :, None], (ranks, 1, 1))
    weights = np.ones(slots.shape, np.float32)
    plan = strategy_of(cell)(slots, weights, slots_per_rank=1, topology=topology_of(cell))
    return replace(plan, carried=None), -(-cell.scope.bytes_per_rank // ranks)
