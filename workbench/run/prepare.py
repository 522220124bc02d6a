"""From a cell to one rank's layer: traffic, plan, weights; everything before the clock starts.

R ranks of the expert-parallel group, T tokens a rank, K top-k, S slots a rank, H hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kernels.moe import ExpertWeights
from workbench.balance.dynamics import judged_step, reached
from workbench.balance.history import placed_before
from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import RankPlan
from workbench.run.chunks import Chunk, is_chunked, make_chunks, num_chunks
from workbench.run.context import RankContext
from workbench.run.encoded import encode_experts
from workbench.run.exchange import Chunked, Planned, Staying
from workbench.run.inputs import SHARED_EXPERT, gate_weights
from workbench.run.layer import RankLayer
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import MODEL_FREE_SCOPES, Cell
from workbench.workload.data import rank_activations
from workbench.workload.traffic import RoutedTraffic, cell_router, rank_logits, rank_router, route_all

BACKENDS = {"ours": "auto", "torch": "torch"}


@dataclass(frozen=True)
class Prepared:
    """A rank's layer with what the check needs: the routing of all ranks, placement and, where rows travel, plans.

    ``tokens_BH`` and ``slots_BC`` (global) are the rows that the output stands for: the rank's tokens, or with
    ``parallel.ranks`` a part of the group, every token that has an expert here. ``chunks`` say how the tokens travel,
    one with all of them where nothing overlaps; ``plan`` and ``rank_plan`` are those of the only chunk.
    """

    layer: RankLayer
    traffic: RoutedTraffic
    expert_map: ExpertMap
    plan: DispatchPlan | None
    rank_plan: RankPlan | None
    tokens_BH: Tensor
    experts_BC: np.ndarray
    weights_BC: np.ndarray
    group_rank: int
    step: int
    chunks: tuple[Chunk, ...] = ()

    @property
    def exchanges(self) -> tuple[Planned, ...]:
        """The exchange of each chunk."""
        exchange = self.layer.exchange
        parts = exchange.parts if isinstance(exchange, Chunked) else (exchange,)
        return tuple(part for part in parts if isinstance(part, Planned))


def backend_of(cell: Cell) -> str:
    """The backend of our own kernels, also of those beside a peer's experts. Raises Unsupported for a microbenchmark
    of a peer."""
    if cell.scope.kind in MODEL_FREE_SCOPES and cell.kernel not in BACKENDS:
        runs = f"runs through its adapter as a whole layer, not as {cell.scope.kind}"
        raise Unsupported(f"kernel: {cell.kernel} {runs}; known: {', '.join(BACKENDS)}")
    return BACKENDS.get(cell.kernel, "auto")


def place_experts(cell: Cell) -> ExpertMap:
    """Where the cell's experts live, decided by the loads of steps that are not measured."""
    return placed_before(cell)


def prepare_layer(
    cell: Cell, context: RankContext, *, step: int | None = None, experts: ExpertWeights | None = None
) -> Prepared:
    """The layer of this rank at one of the workload's steps, the judged one if none is named, with the router as
    ``balance.training`` has left it. Raises Unsupported for what has no implementation yet.

    ``experts``: those of this rank if they are there already.
    """
    assert cell.model is not None
    step = judged_step(cell) if step is None else step
    traffic, expert_map = route_all(cell, step=step, steer=reached(cell)), place_experts(cell)
    group_rank = cell.measured_ranks[context.rank]
    x_TH = rank_activations(cell, rank=group_rank, step=step).to(context.device)
    if experts is None:
        experts = encode_experts(cell, tuple(int(e) for e in expert_map.slots[group_rank]), device=context.device)
    make = partial(_rank_layer, cell, context, group_rank=group_rank, step=step, experts=experts, x_TH=x_TH)
    if cell.parallel.ranks != "all" or context.world == 1:
        return _slice(cell, context, traffic, expert_map, group_rank=group_rank, step=step, make=make)
    chunks = make_chunks(cell, context, traffic, expert_map, count=num_chunks(cell, traffic.tokens_R))
    plans = (chunks[0].plan, chunks[0].rank_plan) if len(chunks) == 1 else (None, None)
    if not chunks[0].plan.hops:
        staying = chunks[0].rank_plan
        layer = make(exchange=Staying(x_TH, staying.ids, staying.weights))
        ids, weights = _experts_at(expert_map, group_rank, staying.ids.cpu().numpy()), staying.weights.cpu().numpy()
        return Prepared(layer, traffic, expert_map, *plans, x_TH, ids, weights, group_rank, step)
    layer = make(exchange=_exchange(cell, context, chunks, group_rank=group_rank))
    ids, weights = traffic.ids[group_rank, : len(x_TH)], traffic.weights[group_rank, : len(x_TH)]
    return Prepared(layer, traffic, expert_map, *plans, x_TH, ids, weights, group_rank, step, chunks)


def _exchange(
    cell: Cell, context: RankContext, chunks: tuple[Chunk, ...], *, group_rank: int
) -> Planned | Chunked:  # fmt: skip
    hidden, transport = cell.model.hidden, context.transport
    parts = [Planned(chunk.rank_plan, transport, cell.dispatch, hidden=hidden) for chunk in chunks]
    return Chunked(parts, [chunk.rows(group_rank) for chunk in chunks]) if is_chunked(cell) else parts[0]


def _slice(
    cell: Cell,
    context: RankContext,
    traffic: RoutedTraffic,
    expert_map: ExpertMap,
    *,
    group_rank: int,
    step: int,
    make: Callable[..., RankLayer],
) -> Prepared:
    """One rank of a larger group by itself: the tokens of all ranks that have an expert here, nothing sent."""
    if cell.ep > 1 and cell.engine == "measure" and cell.dispatch.strategy != "none":
        raise Unsupported(
            f"dispatch.strategy: {cell.dispatch.strategy} needs all {cell.ep} ranks; with parallel.ranks"
            f" {list(cell.measured_ranks)} measure strategy none, or use engine hybrid"
        )
    slots = to_slots(expert_map, traffic.ids)
    here = slots // expert_map.slots_per_rank == group_rank
    kept = here.any(axis=-1)
    rows = []
    for source in range(cell.ep):
        x_TH = rank_activations(cell, rank=source, step=step).to(context.device)
        rows.append(x_TH[torch.from_numpy(kept[source, : len(x_TH)]).to(context.device)])
    local = np.where(here, slots % expert_map.slots_per_rank, -1)[kept].astype(np.int32)
    weights = np.where(here, traffic.weights, 0)[kept].astype(np.float32)
    tokens_BH = torch.cat(rows)
    exchange = Staying(
        tokens_BH, torch.from_numpy(local).to(context.device), torch.from_numpy(weights).to(context.device)
    )
    layer = make(exchange=exchange)
    if cell.ep > 1:
        layer = replace(layer, adds_shared=False)
    experts = _experts_at(expert_map, group_rank, local)
    return Prepared(layer, traffic, expert_map, None, None, tokens_BH, experts, weights, group_rank, step)


def _experts_at(expert_map: ExpertMap, rank: int, local_slots: np.ndarray) -> np.ndarray:
    """Logical experts of local slots; -1 stays -1."""
    return np.where(local_slots >= 0, expert_map.slots[rank][np.maximum(local_slots, 0)], -1)


def _rank_layer(
    cell: Cell,
    context: RankContext,
    *,
    group_rank: int,
    step: int,
    experts: ExpertWeights,
    x_TH: Tensor,
    exchange: Planned | Staying | Chunked,
) -> RankLayer:
    model, seed = cell.model, cell.workload.seed
    assert model is not None
    place = {"rank": group_rank, "step": step, "steer": reached(cell)}
    logits = torch.from_numpy(np.array(rank_logits(cell, **place))).to(context.device)
    route = shared = None
    if cell.scope.kind == "layer":
        route = rank_router(cell, **place, device=context.device, backend=backend_of(cell))
    if model.shared_intermediate:
        shared = encode_experts(cell, (SHARED_EXPERT,), device=context.device)
    return RankLayer(
        x_TH=x_TH,
        logits_TE=logits,
        gate=gate_weights(model, cell_router(cell), seed=seed, device=context.device),
        route=route,
        exchange=exchange,
        experts=experts,
        shared=shared,
        adds_shared=shared is not None,
        weight_on=getattr(cell_router(cell), "weight_on", "output"),
        backend=backend_of(cell),
    )
