"""Which token goes to which expert. Shapes: T tokens of one rank, E experts, K top-k, R ranks of the EP group.

Skew and router are apart: a skew writes logits, the router turns them into experts and weights, so two routers meet
the same traffic. Logits are seeded by (seed, rank, layer, step) and are the same bytes on every machine. Capacity,
of the router or of ``balance.capacity``, counts the tokens of one source rank.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import numpy as np
import torch

from kernels.routing import ROUTERS, Routing, limit_capacity
from workbench.spec.errors import Unsupported
from workbench.spec.router import ExpertChoice, Hash, Recorded, Router
from workbench.spec.scenario import Cell
from workbench.spec.workload import ColdRank, Trace
from workbench.workload.counter import ROUTER, raw_words
from workbench.workload.logits import recorded_routing, token_logits
from workbench.workload.routed import RoutedTraffic
from workbench.workload.skew import require_warm_experts
from workbench.workload.source import Source, source_of
from workbench.workload.source import cell_router as cell_router  # its place for those that route
from workbench.workload.steer import Steer
from workbench.workload.token_ids import token_ids

_NOT_ARGUMENTS = {"kind", "weight_on", "correction_bias", "router_bias", "projection", "vocabulary"}
TOKENS_ASKED = 256
"""Of a rank, where few ranks stand for many."""
_SEEDED = ("random", "noisy_topk")
_BLIND = ("random", "hash")
"""Routers that do not look at the logits."""
_CACHED_BYTES = 32 << 20  # larger traffic is built anew: sixteen such entries are half a GiB


def rank_logits(cell: Cell, *, rank: int, layer: int = 0, step: int = 0, steer: Steer | None = None) -> np.ndarray:
    """Router logits of one rank, float32 [tokens_R[rank], E], with the shift of ``steer``. Raises Unsupported for a
    skew without a sampler."""
    return _logits(source_of(cell, layer, step, steer=steer), rank)


def route_rank(cell: Cell, *, rank: int, layer: int = 0, step: int = 0) -> Routing:
    """The cell's router applied to one rank's logits. Raises Unsupported for a router kind that is not there."""
    return _route(source_of(cell, layer, step), rank)


def rank_router(
    cell: Cell, *, rank: int, device: torch.device | str = "cpu", backend: str = "auto", step: int = 0,
    steer: Steer | None = None,
) -> Callable[[torch.Tensor], Routing]:  # fmt: skip
    """What turns this rank's ``rank_logits`` [T, E] on ``device`` into the routing of ``route_all``,
    ``balance.capacity`` included; all that it needs besides is on the device already, and a shift of ``steer`` in the
    logits."""
    return _router(source_of(cell, 0, step, steer=steer), rank, device=device, backend=backend)


def routing_width(cell: Cell) -> int:
    """Columns of a token's routing: top_k, or where experts choose the most that may choose one token."""
    return source_of(cell, 0, 0).width


def route_all(
    cell: Cell, *, layer: int = 0, step: int = 0, max_tokens: int | None = None, steer: Steer | None = None
) -> RoutedTraffic:
    """Routing of every rank; arrays are read-only and shared between calls.

    ``max_tokens`` tells only that many tokens of each rank (the caller rescales); popularity is that of the full
    number. They are the first ones and have the same experts as without the limit, for a drawn skew. Where tokens
    compete for capacity, all tokens of a rank are routed and evenly spaced ones told, of as many ranks as a budget
    allows. ``steer`` is what training has made of the router; Unsupported for one that it cannot steer.
    """
    source = source_of(cell, layer, step, max_tokens=max_tokens, steer=steer)
    pairs = source.crowd.num_ranks * source.kept * source.width
    return (_cached if pairs * 8 <= _CACHED_BYTES else _route_ranks)(source)


def route_some(
    cell: Cell, *, layer: int = 0, step: int = 0, max_tokens: int, steer: Steer | None = None
) -> tuple[np.ndarray, int]:
    """Experts int32 [S, K] of about ``max_tokens`` of the tokens, from evenly spaced ranks, and pairs dropped of them.

    For a group too large to route rank by rank. Few ranks are asked, each for many tokens, as a call costs more than
    its tokens; a router that needs all tokens of a rank gets them.
    """
    tokens = max(1, cell.workload.tokens_per_rank)
    asked = max(1, min(cell.ep, max_tokens // min(tokens, TOKENS_ASKED)))
    source = source_of(cell, layer, step, max_tokens=max(1, max_tokens // asked), steer=steer)
    if source.rows > source.kept:
        asked = max(1, min(asked, max_tokens // source.rows))
    pieces, dropped = [], 0
    with _one_thread():
        for rank in np.unique(np.arange(asked) * cell.ep // asked).tolist():
            routing = _route(source, rank)
            pieces.append(routing.ids.numpy())
            dropped += int((routing.ids < 0).sum())
    return np.concatenate(pieces), dropped


def mean_scores(
    cell: Cell, *, layer: int = 0, step: int = 0, max_tokens: int | None = None, steer: Steer | None = None
) -> np.ndarray:
    """Softmax over all experts, averaged over the tokens that ``route_all`` routes, float64 [E]; 0 without tokens."""
    source, total, rows = source_of(cell, layer, step, max_tokens=max_tokens, steer=steer), 0.0, 0
    for rank in range(source.routed_ranks):
        logits = torch.from_numpy(_logits(source, rank))
        total, rows = total + logits.softmax(1).sum(0, dtype=torch.float64).numpy(), rows + len(logits)
    return total / max(1, rows)


def router_arguments(router: Router, num_experts: int, *, seed: int = 0, device: torch.device | str = "cpu") -> dict:
    """Keyword arguments of ``ROUTERS[kind]`` beside top_k and token ids; ``seed`` is what the router draws from.

    A bias is passed as zeros where the router has one: whatever is not zero is skew, and skew is the workload's.
    """
    arguments = router.model_dump(exclude=_NOT_ARGUMENTS)
    if router.kind in _SEEDED:
        arguments["seed"] = seed
    if getattr(router, "correction_bias", False) or getattr(router, "router_bias", False):
        arguments["bias"] = torch.zeros(num_experts, device=device)
    return arguments


def _logits(source: Source, rank: int) -> np.ndarray:
    logits = token_logits(source.skew, source.crowd, source.batch(rank))
    if source.steer is not None and source.steer.shift:
        logits = logits + np.array(source.steer.shift, np.float32)
    return logits


def _router(source: Source, rank: int, *, device: torch.device | str, backend: str) -> Callable[..., Routing]:
    crowd = source.crowd
    decide = _recorded if isinstance(source.router, Recorded) else _decided
    route = decide(source, rank, device=device, backend=backend)

    def routed(logits_TE: torch.Tensor) -> Routing:
        routing = route(logits_TE)
        if source.capacity is None:
            return routing
        return limit_capacity(routing, num_experts=crowd.num_experts, capacity_factor=source.capacity)

    return routed


def _decided(source: Source, rank: int, *, device: torch.device | str, backend: str) -> Callable[..., Routing]:
    """The router of ``kernels.routing`` with its arguments on the device."""
    router, crowd = source.router, source.crowd
    if router.kind not in ROUTERS:
        raise Unsupported(f"router: kind {router.kind} is not there yet; known: {', '.join(ROUTERS)}")
    if isinstance(source.skew, ColdRank):
        require_warm_experts(source.skew, router, crowd)
    word = raw_words(1, seed=crowd.seed, purpose=ROUTER, place=(rank, crowd.layer, crowd.step))[0]
    arguments = router_arguments(router, crowd.num_experts, seed=int(word >> np.uint64(1)), device=device)
    if source.steer is not None and source.steer.bias:
        arguments["bias"] = torch.tensor(source.steer.bias, device=device)
    if isinstance(router, Hash):
        ids = token_ids(source.skew, crowd, source.batch(rank), vocabulary=router.vocabulary)
        arguments["token_ids"] = torch.from_numpy(ids).to(device)
    return partial(ROUTERS[router.kind], top_k=crowd.top_k, backend=backend, **arguments)


def _recorded(source: Source, rank: int, *, device: torch.device | str, backend: str) -> Callable[..., Routing]:
    """Experts as recorded; of recorded counts, the largest of the logits drawn for them."""
    skew, crowd = source.skew, source.crowd
    if not isinstance(skew, Trace) or skew.form == "logits":
        raise Unsupported("router: recorded needs workload.skew of kind trace with form ids or counts")
    if skew.form == "counts":
        return partial(ROUTERS["topk_softmax"], top_k=crowd.top_k, backend=backend)
    ids, weights = recorded_routing(skew, crowd, source.batch(rank))
    routing = Routing(torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device))
    return lambda logits_TE: routing


def _route(source: Source, rank: int) -> Routing:
    route = _router(source, rank, device="cpu", backend="torch")
    recorded_ids = isinstance(source.skew, Trace) and source.skew.form == "ids"
    if source.router.kind in _BLIND or recorded_ids:
        return route(torch.zeros(()).expand(source.batch(rank).rows, source.crowd.num_experts))
    return route(torch.from_numpy(_logits(source, rank)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch on one thread: operators this small lose more to waiting for a busy core than a second one gains."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _route_ranks(source: Source) -> RoutedTraffic:
    num_ranks, routed = source.crowd.num_ranks, source.routed_ranks
    shape = (num_ranks, source.kept, source.width)
    ids, weights = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
    tokens_R = source.share_R(source.kept)
    with _one_thread():
        for first in range(routed):
            routing = _route(source, first)
            for turn, rank in enumerate(range(first, num_ranks, routed)):
                told = _told(len(routing.ids), int(tokens_R[rank]), turn)
                ids[rank, : told.size] = routing.ids.numpy()[told]
                weights[rank, : told.size] = routing.weights.numpy()[told]
    for array in (ids, weights, tokens_R):
        array.flags.writeable = False
    return RoutedTraffic(ids, weights, isinstance(source.router, ExpertChoice), tokens_R)


def _told(routed: int, told: int, turn: int) -> np.ndarray:
    """Rows of a routed rank that are told at its ``turn``-th use: evenly spaced, each turn others."""
    rows = np.arange(told)
    return rows if told == routed else (rows * routed // told + turn) % routed


_cached = lru_cache(maxsize=16)(_route_ranks)
