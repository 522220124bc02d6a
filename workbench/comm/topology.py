"""Ranks of an expert-parallel group on nodes. A node here is a scale-up domain: ranks that reach each other fast."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from workbench.balance.nodes import ranks_per_node
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell

Link = Literal["self", "scale_up", "scale_out"]


@dataclass(frozen=True)
class Topology:
    """Rank r lives on node r // ranks_per_node; the last node may be smaller.

    ``inner`` and ``outer`` are further levels of the network, ranks a group: parts of a node that reach one another
    faster, and groups of nodes. Raises ValueError for groups that do not fill up those around them.
    """

    num_ranks: int
    ranks_per_node: int
    outer: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.ranks_per_node < 1:
            raise ValueError(f"topology: {self.num_ranks} ranks, {self.ranks_per_node} a node; both are at least 1")
        for around, group in pairwise((*self.levels, 1)):
            if around % group or around == group != 1:
                raise ValueError(f"topology: groups of {group} ranks do not fill up groups of {around}")

    @property
    def levels(self) -> tuple[int, ...]:
        """Ranks a group at every level, from the outermost; nodes among them."""
        return (*self.outer, self.ranks_per_node, *self.inner)

    @property
    def num_nodes(self) -> int:
        return -(-self.num_ranks // self.ranks_per_node)

    @property
    def node_of(self) -> np.ndarray:
        """Node of every rank, int64 [R]."""
        return np.arange(self.num_ranks) // self.ranks_per_node

    def rail_peer(self, rank: np.ndarray, node: np.ndarray) -> np.ndarray:
        """The rank of ``node`` with the same place in its node as ``rank``; wraps on a smaller last node."""
        first = node * self.ranks_per_node
        size = np.minimum(self.ranks_per_node, self.num_ranks - first)
        return first + rank % self.ranks_per_node % size

    def link(self, source: int, destination: int) -> Link:
        if source == destination:
            return "self"
        same = source // self.ranks_per_node == destination // self.ranks_per_node
        return "scale_up" if same else "scale_out"

    def link_masks(self) -> dict[Link, np.ndarray]:
        """For every class of link the pairs (source, destination) it serves, bool [R, R]."""
        node = self.node_of
        itself = np.eye(self.num_ranks, dtype=bool)
        same = node[:, None] == node[None, :]
        return {"self": itself, "scale_up": same & ~itself, "scale_out": ~same}


def topology_of(cell: Cell) -> Topology:
    """Topology of the cell's EP group; Unsupported for ``dispatch.levels`` that do not nest.

    The boxes of a rack that is one scale-up domain are an inner level of it. What groups of nodes there are, as under
    one switch, a cluster does not say: ``dispatch.levels`` does.
    """
    node = ranks_per_node(cell)
    box = cell.cluster.gpus_per_node // cell.parallel.tp
    asked = cell.dispatch.levels
    if asked is None:
        return Topology(cell.ep, node, inner=(box,) if 1 < box < node and node % box == 0 else ())
    outer, inner = (tuple(size for size in asked if keep(size)) for keep in (node.__lt__, node.__gt__))
    try:
        return Topology(cell.ep, node, outer, tuple(size for size in inner if size > 1))
    except ValueError as error:
        raise Unsupported(f"dispatch.levels: {list(asked)} on nodes of {node} ranks: {error}") from error
