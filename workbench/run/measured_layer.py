"""A rank's layer measured."""

from typing import Any

import numpy as np
import torch

from kernels.moe import math_path
from workbench.measure.clock import Clock
from workbench.run.agreement import require_same_routing, routing_digest
from workbench.run.check import check_layer
from workbench.run.context import RankContext
from workbench.run.encoded import recipe_of
from workbench.run.legs import layer_passages
from workbench.run.measured_step import measured_step
from workbench.run.overlapped_layer import layer_run
from workbench.run.peer import Peer, find_peer, with_peer
from workbench.run.prepare import Prepared, backend_of, prepare_layer
from workbench.run.report import RankReport
from workbench.spec.scenario import Cell

BF16_BYTES = 2


def measure_layer(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """The forward layer, checked against float32."""
    peer = find_peer(cell, context.device)
    prepared, peer_fields = context.agreed(lambda: _prepare(cell, context, peer))
    require_agreement(prepared, context)
    run = layer_run(cell, prepared.layer)

    def check() -> dict[str, Any]:
        result = context.agreed(lambda: check_layer(cell, prepared, run))
        return {"rel_error": result.rel_error, "sqnr_db": result.sqnr_db}

    passages = layer_passages(cell, prepared)
    measured = measured_step(cell, context, run, clock=clock, started=started, check=check, passages=passages)
    work = work_fields(cell, prepared)
    return RankReport(rank=prepared.group_rank, **measured, **work, **peer_fields)


def _prepare(cell: Cell, context: RankContext, peer: Peer | None) -> tuple[Prepared, dict[str, Any]]:
    """The layer, and what a report says of the peer that runs it."""
    prepared = prepare_layer(cell, context)
    if peer is None:
        return prepared, {"math_path": math_path_of(cell, context)}
    prepared, converted_us = with_peer(prepared, peer)
    flags = (f"conversion_ms={converted_us / 1e3:.3g}",)
    return prepared, {"math_path": peer.math_path, "kernel_version": peer.version, "flags": flags}


def require_agreement(prepared: Prepared, context: RankContext) -> None:
    """Raises DispatchMismatch on ranks that route differently from most, PeerFailed on the others."""
    digest = routing_digest(prepared.traffic, prepared.expert_map)
    context.agreed(lambda: require_same_routing(context, digest))


def work_fields(cell: Cell, prepared: Prepared) -> dict[str, Any]:
    """What this rank computed and moved: FLOPs of its experts (three products of 2HI a pair), bytes it had to read."""
    layer, model = prepared.layer, cell.model
    counts = pairs_per_expert(prepared)
    pairs, touched = int(sum(n for _, n in counts)), sum(n > 0 for _, n in counts)
    shared_bytes = layer.shared.nbytes if layer.shared is not None else 0
    tokens, rows = len(layer.x_TH), len(prepared.tokens_BH)
    shared_flops = 6 * tokens * model.hidden * model.shared_intermediate if layer.shared is not None else 0
    return {
        "flops": 6 * pairs * model.hidden * model.moe_intermediate + shared_flops,
        "touched_bytes": touched * layer.experts.nbytes // layer.num_slots + shared_bytes,
        "activation_bytes": 2 * BF16_BYTES * model.hidden * rows,
        "touched_experts": touched,
        "weight_bytes": layer.experts.nbytes + shared_bytes,
        "pairs": pairs,
        "dropped_tokens": int(prepared.traffic.dropped_R[prepared.group_rank]),
        "expert_tokens": counts,
    }


def pairs_per_expert(prepared: Prepared) -> tuple[tuple[int, int], ...]:
    """(expert, pairs computed here) of every slot of the rank."""
    _, ids_BC, _ = prepared.layer.exchange.received()
    local = ids_BC[ids_BC >= 0].cpu().numpy()
    counts = np.bincount(local, minlength=prepared.layer.num_slots)
    slots = prepared.expert_map.slots[prepared.group_rank]
    return tuple(zip(slots.tolist(), counts.tolist(), strict=True))


def math_path_of(cell: Cell, context: RankContext) -> str:
    """How our kernels form the products of this cell on this rank's device."""
    capability = torch.cuda.get_device_capability(context.device) if context.device.type == "cuda" else None
    return math_path(
        recipe_of(cell.precision),
        device_type=context.device.type,
        capability=capability,
        backend=backend_of(cell),
    )
