"""Which token goes to which expert. Shapes: T tokens of one rank, E experts, K top-k, R ranks of the EP group.

Skew and router are apart: a skew writes logits, the router turns them into experts and weights, so two routers meet
the same traffic. Logits are seeded by (seed, rank, layer, step) and are the same bytes on every machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from kernels.routing import ROUTERS, Routing
from workbench.spec.errors import Unsupported
from workbench.spec.router import Router
from workbench.spec.scenario import Cell
from workbench.spec.workload import Skew
from workbench.workload.counter import ROUTER, TOKENS, gumbel, raw_words
from workbench.workload.deal import dealt_logits
from workbench.workload.skew import Crowd, log_popularity

_NOT_ARGUMENTS = {"kind", "weight_on", "correction_bias", "router_bias"}
_CACHED_BYTES = 32 << 20  # larger traffic is built anew: sixteen such entries are half a GiB


@dataclass(frozen=True)
class RoutedTraffic:
    """Experts and weights of all ranks: ids int32 [R, T, K] (-1 = dropped), weights float32 [R, T, K]."""

    ids: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class _Source:
    """All that traffic depends on: cells that agree in these share it. ``rows`` of a rank's tokens are drawn."""

    crowd: Crowd
    skew: Skew
    router: Router
    rows: int


def rank_logits(cell: Cell, *, rank: int, layer: int = 0, step: int = 0) -> np.ndarray:
    """Router logits of one rank, float32 [T, E]. Raises Unsupported for a skew without a sampler."""
    return _logits(_source(cell, layer, step), rank)


def route_rank(cell: Cell, *, rank: int, layer: int = 0, step: int = 0) -> Routing:
    """The cell's router applied to one rank's logits. Raises Unsupported for a router kind that is not there."""
    return _route(_source(cell, layer, step), rank)


def route_all(cell: Cell, *, layer: int = 0, step: int = 0, max_tokens: int | None = None) -> RoutedTraffic:
    """Routing of every rank; arrays are read-only and shared between calls.

    ``max_tokens`` draws only the first that many tokens of each rank (the caller rescales); popularity is that of
    the full number, and a drawn skew gives those tokens the same experts as without the limit.
    """
    source = _source(cell, layer, step, max_tokens)
    pairs = source.crowd.num_ranks * source.rows * source.crowd.top_k
    return (_cached if pairs * 8 <= _CACHED_BYTES else _route_ranks)(source)


def cell_router(cell: Cell) -> Router:
    """The router of a cell, with ``model`` resolved to the model's own gate."""
    if cell.model is None:
        raise ValueError(f"scope {cell.scope.kind}: a cell without a model has no router")
    return cell.model.router if cell.router.kind == "model" else cell.router


def router_arguments(router: Router, num_experts: int, *, seed: int = 0, device: torch.device | str = "cpu") -> dict:
    """Keyword arguments of ``ROUTERS[kind]`` beside top_k; ``seed`` is what the random router draws from.

    A bias is passed as zeros where the router has one: whatever is not zero is skew, and skew is the workload's.
    """
    arguments = router.model_dump(exclude=_NOT_ARGUMENTS)
    if router.kind == "random":
        arguments["seed"] = seed
    if getattr(router, "correction_bias", False) or getattr(router, "router_bias", False):
        arguments["bias"] = torch.zeros(num_experts, device=device)
    return arguments


def _source(cell: Cell, layer: int, step: int, max_tokens: int | None = None) -> _Source:
    router = cell_router(cell)
    tokens = cell.workload.tokens_per_rank
    crowd = Crowd(
        num_experts=cell.model.num_experts,
        top_k=cell.model.top_k,
        num_ranks=cell.ep,
        num_tokens=cell.ep * tokens,
        seed=cell.workload.seed,
        layer=layer,
        step=step,
    )
    rows = tokens if max_tokens is None else min(tokens, max_tokens)
    return _Source(crowd, cell.workload.skew, router, rows)


def _logits(source: _Source, rank: int) -> np.ndarray:
    crowd = source.crowd
    if source.skew.kind == "balanced":
        return dealt_logits(crowd, router=source.router, rank=rank, rows=source.rows)
    place = (rank, crowd.layer, crowd.step)
    noise = gumbel(source.rows, crowd.num_experts, seed=crowd.seed, purpose=TOKENS, place=place)
    noise += _popularity(source.skew, crowd)
    return noise


@lru_cache(maxsize=64)
def _popularity(skew: Skew, crowd: Crowd) -> np.ndarray:
    return log_popularity(skew, crowd)


def _route(source: _Source, rank: int) -> Routing:
    router = source.router
    if router.kind not in ROUTERS:
        raise Unsupported(f"router: kind {router.kind} is not there yet; known: {', '.join(ROUTERS)}")
    crowd = source.crowd
    logits = torch.from_numpy(_logits(source, rank))
    word = raw_words(1, seed=crowd.seed, purpose=ROUTER, place=(rank, crowd.layer, crowd.step))[0]
    arguments = router_arguments(router, crowd.num_experts, seed=int(word >> np.uint64(1)))
    return ROUTERS[router.kind](logits, top_k=crowd.top_k, **arguments)


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch on one thread: operators this small lose more to waiting for a busy core than a second one gains."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _route_ranks(source: _Source) -> RoutedTraffic:
    shape = (source.crowd.num_ranks, source.rows, source.crowd.top_k)
    ids, weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
    with _one_thread():
        for rank in range(source.crowd.num_ranks):
            routing = _route(source, rank)
            ids[rank], weights[rank] = routing.ids.numpy(), routing.weights.numpy()
    ids.flags.writeable = weights.flags.writeable = False
    return RoutedTraffic(ids, weights)


_cached = lru_cache(maxsize=16)(_route_ranks)
