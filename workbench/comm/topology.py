"""Ranks of an expert-parallel group on nodes. A node here is a scale-up domain: ranks that reach each other fast."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.balance.nodes import ranks_per_node
from workbench.spec.scenario import Cell

Link = Literal["self", "scale_up", "scale_out"]


@dataclass(frozen=True)
class Topology:
    """Rank r lives on node r // ranks_per_node; the last node may be smaller."""

    num_ranks: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.ranks_per_node < 1:
            raise ValueError(f"topology: {self.num_ranks} ranks, {self.ranks_per_node} a node; both are at least 1")

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
    """Topology of the cell's EP group."""
    return Topology(cell.ep, ranks_per_node(cell))
