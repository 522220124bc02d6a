"""Strategies by name. Each turns slots int32 [R, T, K] (-1 = dropped) and weights float32 [R, T, K] into a plan."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies.allgather_reduce_scatter import allgather_reduce_scatter
from workbench.comm.strategies.balanced_stages import balanced_stages
from workbench.comm.strategies.bruck import bruck
from workbench.comm.strategies.flat import flat
from workbench.comm.strategies.flat_padded import flat_padded
from workbench.comm.strategies.low_latency import low_latency
from workbench.comm.strategies.multilevel_dedup import multilevel_dedup
from workbench.comm.strategies.node_dedup import node_dedup
from workbench.comm.strategies.packed import packed
from workbench.comm.strategies.pairwise import pairwise
from workbench.comm.strategies.stay import stay
from workbench.comm.strategies.two_dh import two_dh
from workbench.comm.topology import Topology, topology_of
from workbench.spec.scenario import Cell
from workbench.workload.traffic import RoutedTraffic

STRATEGIES: dict[str, Callable[..., DispatchPlan]] = {
    "none": stay,
    "flat": flat,
    "flat_padded": flat_padded,
    "pairwise": pairwise,
    "bruck": bruck,
    "two_dh": two_dh,
    "node_dedup": node_dedup,
    "multilevel_dedup": multilevel_dedup,
    "packed": packed,
    "low_latency": low_latency,
    "allgather_reduce_scatter": allgather_reduce_scatter,
    "balanced_stages": balanced_stages,
}


def _padded_options(cell: Cell) -> dict[str, Any]:
    return {"capacity": cell.balance.capacity, "num_experts": cell.model.num_experts} if cell.model else {}


def _low_latency_options(cell: Cell) -> dict[str, Any]:
    return {"tokens_a_call": ceil(cell.workload.tokens_per_rank / cell.dispatch.overlap.parts)} if cell.model else {}


OPTIONS: dict[str, Callable[[Cell], dict[str, Any]]] = {
    "pairwise": lambda cell: {"pairing": cell.dispatch.pairing},
    "flat_padded": _padded_options,
    "low_latency": _low_latency_options,
}
"""What a strategy takes from a cell besides; a bare exchange has no model and no tokens."""


def make_plan(
    cell: Cell, traffic: RoutedTraffic, expert_map: ExpertMap, *, slots: np.ndarray | None = None
) -> DispatchPlan:
    """The plan of the cell's strategy for this traffic and placement.

    ``slots``: those that the pairs were dealt to already, where the traffic is a part of a larger one. Raises
    Unsupported where the strategy cannot be had.
    """
    slots = to_slots(expert_map, traffic.ids) if slots is None else slots
    tokens_R = tuple(int(tokens) for tokens in traffic.tokens_R)
    return build_plan(cell, slots, traffic.weights, slots_per_rank=expert_map.slots_per_rank, tokens_R=tokens_R)


def build_plan(
    cell: Cell, slots: np.ndarray, weights: np.ndarray, *, slots_per_rank: int, tokens_R: tuple[int, ...]
) -> DispatchPlan:
    """The cell's strategy, with its options, over the cell's topology."""
    name = cell.dispatch.strategy
    options = OPTIONS[name](cell) if name in OPTIONS else {}
    call = {"slots_per_rank": slots_per_rank, "topology": topology_of(cell), "tokens_R": tokens_R}
    return STRATEGIES[name](slots, weights, **call, **options)


@lru_cache(maxsize=256)
def metadata_width(strategy: str, top_k: int) -> int:
    """Columns of routing that ride with a dispatch row, as a plan of one token has them."""
    nothing = np.full((1, 1, top_k), -1, np.int32)
    call = {"slots_per_rank": 1, "topology": Topology(1, 1), "tokens_R": (1,)}
    carried = STRATEGIES[strategy](nothing, np.zeros(nothing.shape, np.float32), **call).carried
    return carried.width if carried else 0
