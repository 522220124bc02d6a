"""The correctness gate of a measured layer: every cell passes it, or ends as an error that says what was wrong.

Three checks: the bytes that arrived are exactly those of a single-process oracle; with experts that return their
input, dispatch and combine give back the weighted tokens; the layer's output is as near to float32 as its formats
allow. T tokens, B output rows, K top-k, H hidden.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.activation import Activation
from kernels.formats import FORMATS
from kernels.permute import combine_rows, gather_rows, sort_by_expert
from kernels.reference import expert_reference, moe_reference
from workbench.comm.execute import DispatchMismatch, verify_arrivals
from workbench.comm.oracle import expected_buffer
from workbench.comm.payload import FORMAT_OF_DTYPE, decode_rows, encode_rows
from workbench.measure.gate import Deviation, deviation, error_limit
from workbench.run.chunks import Chunk
from workbench.run.encoded import recipe_of
from workbench.run.exchange import Planned
from workbench.run.inputs import SHARED_EXPERT, expert_weights, reference_weights
from workbench.run.layer import LayerRun
from workbench.run.overlapped_layer import OverlappedRun
from workbench.run.prepare import Prepared
from workbench.spec.scenario import Cell
from workbench.workload.data import rank_activations

MAX_CHECKED_ROWS = 64
WORST_ROW_SLACK = 4.0


class CheckFailed(RuntimeError):
    """A measured cell gave a wrong result; the message says which and by how much."""


def check_layer(cell: Cell, prepared: Prepared, run: LayerRun | OverlappedRun) -> Deviation:
    """Deviation of the last output from float32. All ranks must call it: one check sends rows. Chunks that travel by
    themselves are checked by themselves.

    Raises CheckFailed.
    """
    faults: list[str | None] = []
    for chunk, exchange in zip(prepared.chunks, prepared.exchanges, strict=True):
        faults += [_wire_fault(cell, prepared, chunk, exchange), _round_trip_fault(cell, prepared, chunk, exchange)]
    faults.append(_shared_fault(cell, prepared, run))
    result, limit = _deviation(cell, prepared, run.y_TH), layer_limit(cell)
    if not result.rel_error <= limit or not result.worst_row <= WORST_ROW_SLACK * limit:
        faults.append(
            f"output differs from the float32 reference by {result.rel_error:.3g} (row {result.worst_row_index}:"
            f" {result.worst_row:.3g}); {cell.precision.name} explains {limit:.3g}"
        )
    if any(faults):
        raise CheckFailed("; ".join(fault for fault in faults if fault))
    return result


def layer_limit(cell: Cell) -> float:
    """Relative error that the cell's formats explain."""
    recipe = recipe_of(cell.precision)
    wire = [FORMATS[FORMAT_OF_DTYPE[d]].tolerance for d in (cell.dispatch.dispatch_dtype, cell.dispatch.combine_dtype)]
    return error_limit(
        weights=FORMATS[recipe.weights].tolerance,
        activations=FORMATS[recipe.activations].tolerance,
        wire=float(np.hypot(*wire)),
    )


def _wire_fault(cell: Cell, prepared: Prepared, chunk: Chunk, exchange: Planned) -> str | None:
    dtype, device = cell.dispatch.dispatch_dtype, prepared.layer.x_TH.device
    tokens = [
        rank_activations(cell, rank=rank, step=prepared.step)[chunk.rows(rank)].to(device) for rank in range(cell.ep)
    ]
    expected = expected_buffer(chunk.plan, prepared.group_rank, [encode_rows(x_TH, dtype) for x_TH in tokens])
    got = exchange.buffer.cpu()
    if got.shape != expected.shape:
        return f"dispatch delivered {tuple(got.shape)} bytes instead of {tuple(expected.shape)}"
    wrong = (got != expected).any(dim=1).nonzero()
    if wrong.numel():
        return f"dispatch delivered {len(wrong)} of {len(expected)} rows wrong, first row {int(wrong[0])}"
    _, ids, weights = exchange.received()
    try:
        verify_arrivals(chunk.rank_plan, ids, weights)
    except DispatchMismatch as mismatch:
        return str(mismatch)
    return None


def _round_trip_fault(cell: Cell, prepared: Prepared, chunk: Chunk, exchange: Planned) -> str | None:
    """Experts that return their input: what comes back is the token times the sum of its weights."""
    rows_BH, ids_BC, weights_BC = exchange.received()
    perm = sort_by_expert(ids_BC, prepared.layer.num_slots)
    back_TH = exchange.combine(combine_rows(gather_rows(rows_BH, perm, ids_BC.shape[1]), perm, weights_BC))
    rows, dtypes = chunk.rows(prepared.group_rank), cell.dispatch
    x_TH = prepared.layer.x_TH[rows]
    travelled_TH = decode_rows(encode_rows(x_TH, dtypes.dispatch_dtype), x_TH.shape[1], dtypes.dispatch_dtype)
    weight_T1 = torch.from_numpy(prepared.weights_BC[rows].sum(axis=1, keepdims=True)).to(x_TH.device)
    result = deviation(back_TH, travelled_TH.float() * weight_T1)
    limit = error_limit(weights=0, activations=0, wire=FORMATS[FORMAT_OF_DTYPE[dtypes.combine_dtype]].tolerance)
    if not result.worst_row <= WORST_ROW_SLACK * limit:
        return (
            f"combine: with experts that change nothing, token {result.worst_row_index} comes back off by"
            f" {result.worst_row:.3g}; {dtypes.combine_dtype} explains {limit:.3g}"
        )
    return None


def _shared_fault(cell: Cell, prepared: Prepared, run: LayerRun) -> str | None:
    """The shared expert by itself where its result is not part of the output."""
    layer = prepared.layer
    if layer.shared is None or layer.adds_shared:
        return None
    rows = _checked_rows(len(layer.x_TH)).to(layer.x_TH.device)
    expected = _shared_reference(cell, layer.x_TH[rows])
    result, limit = deviation(run.shared_TH[rows], expected), layer_limit(cell)
    if not result.rel_error <= limit:
        return f"shared expert differs by {result.rel_error:.3g}; {cell.precision.name} explains {limit:.3g}"
    return None


def _checked_rows(num_rows: int) -> Tensor:
    count = min(num_rows, MAX_CHECKED_ROWS)
    return torch.linspace(0, max(num_rows - 1, 0), count).round().long()


def _deviation(cell: Cell, prepared: Prepared, y_BH: Tensor) -> Deviation:
    rows = _checked_rows(len(prepared.tokens_BH))
    device = y_BH.device
    ids, weights = (torch.from_numpy(routed[rows.numpy()]) for routed in (prepared.experts_BC, prepared.weights_BC))
    x_BH = prepared.tokens_BH[rows.to(device)]
    experts = reference_weights(cell.model, seed=cell.workload.seed, device=device)
    expected = moe_reference(
        x_BH,
        ids.to(device),
        weights.to(device),
        experts.w13,
        experts.w2,
        bias13=experts.bias13,
        bias2=experts.bias2,
        activation=Activation(**cell.model.activation.model_dump()),
        weight_on=prepared.layer.weight_on,
    )
    if prepared.layer.adds_shared:
        expected += _shared_reference(cell, x_BH)
    return deviation(y_BH[rows.to(device)], expected)


def _shared_reference(cell: Cell, x_TH: Tensor) -> Tensor:
    raw = expert_weights(cell.model, (SHARED_EXPERT,), seed=cell.workload.seed, device=x_TH.device)
    activation = Activation(**cell.model.activation.model_dump())
    return expert_reference(x_TH, raw.w13[0], raw.w2[0], activation=activation)
