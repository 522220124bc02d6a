"""Loads of an even all-to-all in closed form, for any number of ranks: every rank has one block for each other.

R ranks on N nodes of G. Rows are blocks of a buffer of R of them, as ``workbench.comm.bare`` cuts it.
"""

import numpy as np

from workbench.simulate.loads import HopLoad, PortLoad


def linear_loads(num_ranks: int, ranks_per_node: int) -> tuple[HopLoad, ...]:
    """One hop: a message to every rank. Raises ValueError for nodes that the ranks do not fill."""
    nodes = _nodes(num_ranks, ranks_per_node)
    rail, cross = nodes - 1, (nodes - 1) * (ranks_per_node - 1)
    up = ranks_per_node - 1
    return (_hop("all_to_all", num_ranks, ranks_per_node, rows=(up, rail, cross), messages=(up, rail, cross), own=1),)


def two_dh_loads(num_ranks: int, ranks_per_node: int) -> tuple[HopLoad, ...]:
    """Two hops: to the rail of the owner inside the node, then along the rail."""
    nodes, up = _nodes(num_ranks, ranks_per_node), ranks_per_node - 1
    inside = {"rows": (up * nodes, 0, 0), "messages": (up, 0, 0), "own": nodes}
    along = {"rows": (0, (nodes - 1) * ranks_per_node, 0), "messages": (0, nodes - 1, 0), "own": ranks_per_node}
    return (
        _hop("scale_up", num_ranks, ranks_per_node, **inside),
        _hop("scale_out", num_ranks, ranks_per_node, **along),
    )


def _nodes(num_ranks: int, ranks_per_node: int) -> int:
    if num_ranks % ranks_per_node:
        raise ValueError(f"{num_ranks} ranks do not fill nodes of {ranks_per_node}")
    return num_ranks // ranks_per_node


def _hop(
    name: str, num_ranks: int, ranks_per_node: int, *, rows: tuple[int, ...], messages: tuple[int, ...], own: int
) -> HopLoad:
    def every(value: int) -> np.ndarray:
        return np.full(num_ranks, float(value))

    up, rail, cross = rows
    peers = every(messages[1] + messages[2])
    port = PortLoad(*map(every, (up, rail, cross)), *map(every, messages), peers)
    return HopLoad(
        name,
        np.arange(num_ranks) // ranks_per_node,
        port,
        port,
        self_R=every(own),
        peer_R=every(up // max(1, ranks_per_node - 1)),
        packed_R=every(sum(rows) + own),
        announced=True,
    )
