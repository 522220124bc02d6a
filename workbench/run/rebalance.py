"""What it would cost to place a cell's experts anew after its steps, by what those steps have brought."""

from workbench.balance.history import placed_before, recent_loads
from workbench.balance.movement import move, movement_us, settled
from workbench.balance.nodes import ranks_per_node
from workbench.balance.placement import READ_LOADS, place_cell
from workbench.simulate.weights import expert_bytes
from workbench.spec.scenario import Cell


def rebalance_flags(cell: Cell) -> list[str]:
    """``rebalance_us=93.1``, until the weights of layer 0 would have moved; of a cell with several steps whose
    placement reads loads.

    From the placement that the cell has to that by the loads of its last steps, with ranks of a node renamed so that
    little moves. Outside of a step, so it is no part of the latency.
    """
    if cell.model is None or cell.workload.steps == 1 or cell.ep == 1:
        return []
    if cell.balance.placement.kind not in READ_LOADS:
        return []
    before, per_node = placed_before(cell), ranks_per_node(cell)
    after = settled(before, place_cell(cell, recent_loads(cell)), ranks_per_node=per_node)
    movement = move(before, after, expert_bytes=expert_bytes(cell.model, cell.precision), ranks_per_node=per_node)
    us = movement_us(movement, cell.cluster.hardware, expert_tp=cell.parallel.tp)
    return [f"rebalance_us={us:.4g}"]
