"""From a cell to one rank's training step; everything before the clock starts.

R ranks of the expert-parallel group, T tokens a rank, K top-k, H hidden, B buffer rows, C (slot, weight) columns.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kernels.activation import Activation
from kernels.backward import TrainRecipe, router_weights
from kernels.backward.recipe import default_gradients
from kernels.backward.router import SCORES
from kernels.recipes import format_name
from kernels.scaling import Scaling
from workbench.balance.dynamics import reached
from workbench.balance.placement import to_slots
from workbench.comm.gradients import pair_choices
from workbench.run.chunks import is_chunked
from workbench.run.context import RankContext
from workbench.run.encoded import recipe_of
from workbench.run.exchange import Staying
from workbench.run.inputs import SHARED_EXPERT, expert_weights
from workbench.run.prepare import BACKENDS, Prepared, backend_of, prepare_layer
from workbench.run.train_layer import TrainChunk, TrainLayer
from workbench.spec.errors import Unsupported
from workbench.spec.precision import Precision
from workbench.spec.scenario import Cell
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import cell_router, rank_router, router_arguments

UPSTREAM = 7919
"""Tells the seed of the output's gradients from those of the tokens and the weights."""


def train_recipe_of(precision: Precision) -> TrainRecipe:
    """The kernels' recipe of a precision; gradients left out are E5M2 beside E4M3. Raises Unsupported."""
    recipe, asked = recipe_of(precision), precision.gradients
    try:
        name = default_gradients(recipe.weights)
        if asked is not None:
            name = format_name(asked.format, asked.granularity)
        return TrainRecipe(
            precision.name,
            recipe.weights,
            recipe.activations,
            name,
            scaling=precision.scaling,
            amax_history=precision.amax_history,
            scale_rule=None if precision.scale_rule == "none" else precision.scale_rule,
            overflow=precision.overflow,
        )
    except ValueError as fault:
        raise Unsupported(f"scope train_step: {fault}") from None


def router_options(cell: Cell) -> dict:
    """Keyword arguments of ``router_weights``, or Unsupported for a router without a gradient."""
    router = cell_router(cell)
    if router.kind not in SCORES:
        known = ", ".join(SCORES)
        raise Unsupported(f"router: {router.kind} has no gradient in scope train_step; known: {known}")
    arguments = router_arguments(router, cell.model.num_experts)
    return {"kind": router.kind} | {n: arguments[n] for n in ("norm_topk", "routed_scaling") if n in arguments}


def upstream_gradients(cell: Cell, *, rank: int) -> Tensor:
    """bf16 [T, H], standard normal: the gradient that a rank's layer gets from what comes after it."""
    generator = torch.Generator().manual_seed((cell.workload.seed * 1_000_003 + UPSTREAM) * 65_537 + rank)
    shape = (int(source_tokens(cell)[rank]), cell.model.hidden)
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def prepare_train(cell: Cell, context: RankContext) -> tuple[Prepared, TrainLayer]:
    """The forward layer of this rank and its training step. Raises Unsupported for what has no backward yet.

    Once every rank has it, ``with_choices`` completes it.
    """
    require_trainable(cell)
    recipe, options = train_recipe_of(cell.precision), router_options(cell)
    prepared = prepare_layer(cell, context)
    if cell.ep == 1:
        prepared = _whole(prepared)
    rank, model = prepared.group_rank, cell.model
    assert model is not None
    place = {"rank": rank, "step": prepared.step, "steer": reached(cell)}
    route = rank_router(cell, **place, device=context.device, backend=backend_of(cell))
    prepared = replace(prepared, layer=replace(prepared.layer, route=route))
    _require_weights(prepared, options)
    how = {"seed": cell.workload.seed, "device": context.device}
    shared = expert_weights(model, (SHARED_EXPERT,), **how) if model.shared_intermediate else None
    if shared is not None:
        shared = replace(shared, bias13=None, bias2=None)
    step = TrainLayer(
        layer=prepared.layer,
        weights=expert_weights(model, tuple(int(e) for e in prepared.expert_map.slots[rank]), **how),
        shared_weights=shared,
        activation=Activation(**model.activation.model_dump()),
        recipe=recipe,
        scaling=Scaling(recipe.scaling, recipe.amax_history),
        router=options,
        top_k=prepared.traffic.ids.shape[2],
        upstream_TH=upstream_gradients(cell, rank=rank).to(context.device),
        transport=context.transport,
        overlaps=is_chunked(cell),
        shared_beside=cell.dispatch.shared_expert_overlap,
        two_batch=cell.dispatch.overlap.kind == "two_batch",
    )
    return prepared, step


def with_choices(prepared: Prepared, step: TrainLayer) -> TrainLayer:
    """The step with its chunks, and each received pair's place among its token's choices. All ranks must call it: it
    dispatches once.

    A receiver could be sent the place beside the slot; here the plan says it.
    """
    layer = prepared.layer
    for _, stage in layer.exchange.dispatch_stages(lambda: layer.x_TH):
        stage()
    everything = slice(0, len(layer.x_TH))
    if not prepared.chunks:
        return replace(step, chunks=(TrainChunk(everything, layer.exchange, None, _choices_at_home(prepared)),))
    slots_RTK, rank, chunks = slots_dealt(prepared), prepared.group_rank, []
    for chunk, exchange in zip(prepared.chunks, prepared.exchanges, strict=True):
        _, ids_BC, _ = exchange.received()
        choices = pair_choices(chunk.plan, rank, chunk.take(slots_RTK, fill=-1), ids_BC.cpu().numpy())
        choices_BC = torch.from_numpy(choices).to(ids_BC.device)
        chunks.append(TrainChunk(chunk.rows(rank), exchange, chunk.rank_plan, choices_BC))
    return replace(step, chunks=tuple(chunks))


def _choices_at_home(prepared: Prepared) -> Tensor:
    """Choices of pairs that never left."""
    _, ids_BC, _ = prepared.layer.exchange.received()
    local = ids_BC.cpu().numpy()
    if prepared.plan is None:
        choices = np.where(local >= 0, np.arange(local.shape[1]), -1)
    else:
        choices = pair_choices(prepared.plan, prepared.group_rank, slots_dealt(prepared), local)
    return torch.from_numpy(choices).to(ids_BC.device)


def slots_dealt(prepared: Prepared) -> np.ndarray:
    """Global slots int32 [R, T, K] that compute the pairs: without hops the same local slots at home."""
    expert_map = prepared.expert_map
    slots = to_slots(expert_map, prepared.traffic.ids)
    if prepared.plan is None or prepared.plan.hops:
        return slots
    home = np.arange(slots.shape[0], dtype=slots.dtype)[:, None, None] * expert_map.slots_per_rank
    return np.where(slots >= 0, home + slots % expert_map.slots_per_rank, -1)


def _whole(prepared: Prepared) -> Prepared:
    """A group of one rank with all its tokens, those without an expert too, for they have gradients."""
    slots = to_slots(prepared.expert_map, prepared.traffic.ids)[0]
    layer, device = prepared.layer, prepared.layer.x_TH.device
    ids, weights = (torch.from_numpy(np.array(part)).to(device) for part in (slots, prepared.traffic.weights[0]))
    return replace(
        prepared,
        layer=replace(layer, exchange=Staying(layer.x_TH, ids, weights)),
        tokens_BH=layer.x_TH,
        experts_BC=prepared.traffic.ids[0],
        weights_BC=prepared.traffic.weights[0],
    )


def require_trainable(cell: Cell) -> None:
    """Raises Unsupported, naming the field, for a step that has no backward here."""
    if cell.kernel not in BACKENDS:
        raise Unsupported(f"kernel: {cell.kernel} has no backward here; known: {', '.join(BACKENDS)}")
    if cell.parallel.ranks != "all":
        raise Unsupported(f"parallel.ranks: {list(cell.parallel.ranks)} of a group cannot be trained apart; use all")
    if cell.dispatch.overlap.kind != "none" and cell.precision.scaling == "delayed":
        raise Unsupported(
            "precision.scaling: delayed keeps one amax a step, and with dispatch.overlap each chunk would add its own;"
            " take current"
        )


def _require_weights(prepared: Prepared, options: dict) -> None:
    """The gradient must be that of the weights that are used: a capacity may change them after the router."""
    logits = prepared.layer.logits_TE.cpu()
    ids, weights = (torch.from_numpy(np.array(part[prepared.group_rank, : len(logits)])) for part in _routed(prepared))
    if not torch.allclose(router_weights(logits, ids, **options), weights, rtol=1e-3, atol=1e-5):
        raise Unsupported(f"router: {options['kind']} with this balance.capacity has no gradient in scope train_step")


def _routed(prepared: Prepared) -> tuple[np.ndarray, np.ndarray]:
    return prepared.traffic.ids, prepared.traffic.weights
