"""Bytes of the send and receive buffers that a dispatch strategy holds on one GPU.

T tokens a rank, k choices of each, R ranks, N nodes of G, S expert slots a rank.
"""

from math import prod

from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.comm.topology import topology_of
from workbench.spec.parallel import experts_per_rank
from workbench.spec.scenario import Cell

CALLS_IN_FLIGHT = 2


def dispatch_buffer_bytes(cell: Cell, *, held_rows: float | None = None) -> int:
    """Buffers of one layer's dispatch and combine. ``held_rows`` are the rows that a counted plan holds at once on the
    wire; without it those of even traffic.

    ``low_latency`` has static buffers, as DeepEP's are sized: for each of two calls, room for every token of every rank
    in each of the rank's slots, once to receive into and once to send the results from.
    """
    out, back = dispatch_row_bytes(cell), combine_row_bytes(cell)
    if cell.ep == 1 or cell.dispatch.strategy == "none":
        return 0 if held_rows is None else round(held_rows * (out + back))
    if cell.dispatch.strategy == "low_latency":
        return CALLS_IN_FLIGHT * round(_places(cell)) * (max(out, back) + back)
    return round((even_rows(cell) if held_rows is None else held_rows) * (out + back))


def _places(cell: Cell) -> float:
    assert cell.model is not None
    redundant = cell.balance.placement.redundant_experts
    assert isinstance(redundant, int), "a planned cell has its redundancy decided"
    slots = experts_per_rank(cell.model.num_experts, cell.ep, redundant=redundant)
    return slots * cell.ep * cell.workload.tokens_per_rank / cell.dispatch.overlap.parts


def even_rows(cell: Cell) -> float:
    """Rows that even traffic holds at once: what the fullest hop was given, sends and receives."""
    assert cell.model is not None
    tokens, top_k, ranks = cell.workload.tokens_per_rank, cell.model.top_k, cell.ep
    nodes = int(topology_of(cell).node_of.max()) + 1
    experts, pairs = cell.model.num_experts, tokens * top_k
    to_ranks, to_nodes = (tokens * _distinct(top_k, places, experts) for places in (ranks, nodes))
    match cell.dispatch.strategy:
        case "allgather_reduce_scatter":
            return tokens * (ranks + (2 * nodes if nodes > 1 else 1))
        case "node_dedup" | "multilevel_dedup":
            return to_nodes + 2 * to_ranks if nodes > 1 else 2 * to_ranks
        case "bruck" | "two_dh" | "balanced_stages":
            return 3 * pairs
    return 2 * pairs


def _distinct(choices: int, places: int, experts: int) -> float:
    """Different places among those of ``choices`` different experts, dealt evenly over ``places``."""
    beside = experts - experts / places
    return places * (1 - prod(max(0.0, beside - i) / (experts - i) for i in range(choices)))
