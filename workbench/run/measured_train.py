"""A rank's training step measured, its output and its gradients checked."""

from typing import Any

from workbench.measure.clock import Clock
from workbench.run.check import check_layer
from workbench.run.context import RankContext
from workbench.run.legs import layer_passages
from workbench.run.measured_layer import math_path_of, pairs_per_expert, require_agreement
from workbench.run.measured_step import measured_step
from workbench.run.prepare import Prepared
from workbench.run.report import RankReport
from workbench.run.train_check import check_gradients
from workbench.run.train_prepare import prepare_train, with_choices
from workbench.run.train_step import TrainRun
from workbench.spec.scenario import Cell

BF16_BYTES, FLOAT32_BYTES = 2, 4
FLOPS_PER_PAIR = 18
"""Times H * I: 6 forward, and twice that backward, for gradients of the inputs and of the weights."""


def measure_train(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """Forward and backward together; ``grad_rel_error`` is that of the last sampled step."""
    prepared, step = context.agreed(lambda: prepare_train(cell, context))
    require_agreement(prepared, context)
    run = TrainRun(with_choices(prepared, step))

    def check() -> dict[str, Any]:
        grad_rel_error = context.agreed(lambda: check_gradients(cell, prepared, run))
        result = context.agreed(lambda: check_layer(cell, prepared, run))
        return {"grad_rel_error": grad_rel_error, "rel_error": result.rel_error, "sqnr_db": result.sqnr_db}

    passages = layer_passages(cell, prepared)
    measured = measured_step(cell, context, run, clock=clock, started=started, check=check, passages=passages)
    work = _work_fields(cell, prepared)
    return RankReport(rank=prepared.group_rank, math_path=math_path_of(cell, context), **measured, **work)


def _work_fields(cell: Cell, prepared: Prepared) -> dict[str, Any]:
    """FLOPs of forward and backward; weights read forward and for dgrad, and their gradients written in float32."""
    layer, model = prepared.layer, cell.model
    assert model is not None
    counts = pairs_per_expert(prepared)
    pairs, touched = sum(n for _, n in counts), sum(n > 0 for _, n in counts)
    tokens = len(layer.x_TH)
    shared_bytes = layer.shared.nbytes if layer.shared is not None else 0
    pair_work = pairs * model.moe_intermediate + tokens * model.shared_intermediate
    elements = 3 * model.hidden * (touched * model.moe_intermediate + model.shared_intermediate)
    read = touched * layer.experts.nbytes // layer.num_slots + shared_bytes
    return {
        "flops": FLOPS_PER_PAIR * model.hidden * pair_work,
        "touched_bytes": 2 * read + FLOAT32_BYTES * elements,
        "activation_bytes": 4 * BF16_BYTES * model.hidden * len(prepared.tokens_BH),
        "touched_experts": touched,
        "weight_bytes": layer.experts.nbytes + shared_bytes,
        "pairs": pairs,
        "dropped_tokens": int(prepared.traffic.missing[prepared.group_rank].sum()),
        "expert_tokens": counts,
    }
