"""The kernels of one MoE layer as roofline stages, for every rank of the group at once.

T tokens a rank, P (token, expert) pairs a rank computes, B rows of its buffer after dispatch, H hidden,
I intermediate (cut by tp). Stage names are those of a measured layer; one name may cover several kernels, and
``quantise`` comes up wherever values are encoded. Copies beside an exchange (send buffers gathered, returned rows
added up) are stages named ``dispatch`` and ``combine``.

Idealised: no kernel is fused with its neighbour, each reads its inputs and writes its outputs once. Permute counts,
sorts and gathers (three launches); the gate is a GEMM and a selection. The routed experts' stages then take the time
of the cell's method (``experts``), each its share.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes, encoded_bytes
from workbench.simulate.compute import Rates, Stage, copy_stage, gemm_stage, is_encoded, rates_of
from workbench.simulate.experts import price_experts
from workbench.simulate.formats import WIRE_FORMATS, row_bytes
from workbench.simulate.traffic import GroupTraffic
from workbench.simulate.weights import FLOAT32_BYTES, WIDE_BYTES, expert_bytes
from workbench.spec.model import Model
from workbench.spec.precision import NumberFormat, Precision, tensor_bytes
from workbench.spec.router import Cosine, Router
from workbench.spec.scenario import Cell
from workbench.workload.traffic import cell_router


@dataclass(frozen=True)
class LayerStages:
    """Stages in order; ``pack``, ``encode_back`` and ``unpack`` are copies beside the exchanges, and the shared expert
    stands apart."""

    gate: tuple[Stage, ...]
    encode: tuple[Stage, ...]
    pack: tuple[Stage, ...]
    experts: tuple[Stage, ...]
    encode_back: tuple[Stage, ...]
    unpack: tuple[Stage, ...]
    shared: tuple[Stage, ...]

    @property
    def all(self) -> tuple[Stage, ...]:
        before = self.gate + self.encode + self.pack
        return before + self.experts + self.encode_back + self.unpack + self.shared


def layer_stages(cell: Cell, traffic: GroupTraffic) -> LayerStages:
    """The stages of the tokens of ``traffic``; without dispatch hops nothing is encoded for a wire."""
    model, tokens_R = cell.model, traffic.tokens_R
    assert model is not None
    rates = rates_of(cell.cluster.hardware, cell.precision)
    travels, gate = bool(traffic.hops), ()
    if cell.scope.kind != "layer_no_router":
        gate = (gate_stage(model, cell_router(cell), tokens_R, rates=rates),)
    return LayerStages(
        gate=gate,
        encode=_encode(cell, tokens_R=tokens_R, rates=rates) if travels else (),
        pack=_pack(cell, traffic, rates=rates) if travels else (),
        experts=price_experts(cell, traffic, tuple(_expert_stages(cell, traffic, rates=rates)), rates=rates),
        encode_back=_encode_back(cell, traffic, rates=rates) if travels else (),
        unpack=_unpack(cell, traffic, rates=rates) if travels else (),
        shared=shared_stages(model, cell.precision, tokens_R=tokens_R, tp=cell.parallel.tp, rates=rates),
    )


def gate_stage(model: Model, router: Router, tokens_R: np.ndarray, *, rates: Rates) -> Stage:
    """Logits [T, E] in bf16 math from x [T, H], written in float32 and read again by the selection.

    Cosine goes by way of a projection, written and read in bf16; a router without logits only writes its result.
    """
    result = 8 * model.top_k
    if router.kind in ("hash", "random"):
        return Stage("gate", tokens_R * result, 0.0 * tokens_R, 1, rates.wide_flops_per_us)
    middle = router.projection if isinstance(router, Cosine) else 0
    weights = model.hidden * (middle or model.num_experts) + middle * model.num_experts
    read = WIDE_BYTES * (model.hidden + 2 * middle)
    per_token = read + 2 * FLOAT32_BYTES * model.num_experts + result
    moved_R = tokens_R * per_token + WIDE_BYTES * weights
    return Stage("gate", moved_R, 2.0 * tokens_R * weights, 3 if middle else 2, rates.wide_flops_per_us)


def quantise_stage(
    number: NumberFormat, columns: int, *, rows_R: np.ndarray, rates: Rates, name: str = "quantise",
    part: str = "quantise",
) -> Stage:  # fmt: skip
    """bf16 rows read, encoded rows with their scales written; a tensor-wide scale needs a pass before (amax)."""
    two_pass = number.granularity in ("tensor", "nvfp4")
    moved = WIDE_BYTES * columns * (2 if two_pass else 1) + row_bytes(number, columns)
    return copy_stage(name, rows_R=rows_R, row_bytes=moved, rates=rates, kernels=2 if two_pass else 1, part=part)


def _encode(cell: Cell, *, tokens_R: np.ndarray, rates: Rates) -> tuple[Stage, ...]:
    """Tokens encoded for the wire."""
    assert cell.model is not None
    number = WIRE_FORMATS.get(cell.dispatch.dispatch_dtype)
    if number is None:
        return ()
    return (quantise_stage(number, cell.model.hidden, rows_R=tokens_R, rates=rates, part="wire"),)


def _pack(cell: Cell, traffic: GroupTraffic, *, rates: Rates) -> tuple[Stage, ...]:
    """Rows gathered into each hop's send buffer: read and written once a hop.

    Hops after the first are passes over memory that a strategy of one hop has not: bruck's and two_dh's price.
    """
    packed_R, moved = sum(hop.packed_R for hop in traffic.hops), 2 * dispatch_row_bytes(cell)
    kernels = len(traffic.hops)
    return (copy_stage("dispatch", rows_R=packed_R, row_bytes=moved, rates=rates, kernels=kernels, part="dispatch"),)


def _encode_back(cell: Cell, traffic: GroupTraffic, *, rates: Rates) -> tuple[Stage, ...]:
    """Sums encoded for the way back, where that is narrower than bf16; again before every hop."""
    assert cell.model is not None
    number = WIRE_FORMATS.get(cell.dispatch.combine_dtype)
    if number is None:
        return ()
    hidden, how = cell.model.hidden, {"rates": rates, "name": "combine", "part": "combine"}
    return tuple(quantise_stage(number, hidden, rows_R=hop.received_R, **how) for hop in reversed(traffic.hops))


def _unpack(cell: Cell, traffic: GroupTraffic, *, rates: Rates) -> tuple[Stage, ...]:
    """Returned rows read and added into the rows they came from, written in bf16, hop by hop."""
    assert cell.model is not None
    one_row = combine_row_bytes(cell)
    held_R, moved_R = traffic.tokens_R, np.zeros(traffic.num_ranks)
    for hop in traffic.hops:
        moved_R = moved_R + hop.sent_R * one_row + held_R * WIDE_BYTES * cell.model.hidden
        held_R = hop.received_R
    kernels = len(traffic.hops)
    return (copy_stage("combine", rows_R=moved_R, row_bytes=1, rates=rates, kernels=kernels, part="combine"),)


def _expert_stages(cell: Cell, traffic: GroupTraffic, *, rates: Rates) -> list[Stage]:
    """permute, [quantise], gemm1, activation, [quantise], gemm2, unpermute.

    Permute decodes what came over the wire, unless the GEMM takes that very format; unpermute writes a sum for every
    row of the buffer, zeros for those that no expert here reads.
    """
    model, number = cell.model, cell.precision.activations
    assert model is not None
    hidden, wide_row, pairs_R = model.hidden, WIDE_BYTES * model.hidden, traffic.pairs_R
    dtype = cell.dispatch.dispatch_dtype if traffic.hops else "bf16"
    encoded_on_wire = WIRE_FORMATS.get(dtype) == number
    row_in = encoded_bytes(hidden, dtype)
    permuted_row = row_in if encoded_on_wire else wide_row
    moved_R = traffic.used_rows_R * row_in + pairs_R * permuted_row
    stages = [copy_stage("permute", rows_R=moved_R, row_bytes=1, rates=rates, kernels=3)]
    if is_encoded(number) and not encoded_on_wire:
        stages.append(quantise_stage(number, hidden, rows_R=pairs_R, rates=rates))
    stages += _mlp_stages(cell, model, traffic, rates=rates)
    moved_R = (pairs_R + traffic.buffer_rows_R) * wide_row
    return [*stages, copy_stage("unpermute", rows_R=moved_R, row_bytes=1, rates=rates)]


def _mlp_stages(cell: Cell, model: Model, traffic: GroupTraffic, *, rates: Rates) -> list[Stage]:
    precision, intermediate = cell.precision, ceil(model.moe_intermediate / cell.parallel.tp)
    one_expert = expert_bytes(model, precision, tp=cell.parallel.tp)
    return mlp_stages(
        ("gemm1", "activation", "quantise", "gemm2"),
        rows_R=traffic.pairs_R,
        touched_R=traffic.touched_R,
        hidden=model.hidden,
        intermediate=intermediate,
        w13_share=one_expert - tensor_bytes(precision.weights, model.hidden, intermediate, weights=True),
        precision=precision,
        rates=rates,
    )


def mlp_stages(
    names: tuple[str, str, str, str], *, rows_R: np.ndarray, touched_R: np.ndarray, hidden: int, intermediate: int,
    w13_share: int, precision: Precision, rates: Rates,
) -> list[Stage]:  # fmt: skip
    """Gated MLP over encoded rows: w13, activation, encoding of the middle, w2; ``names`` in that order.

    ``w13_share`` is the bytes of one expert without w2 (biases go with it).
    """
    number, flops_per_us = precision.activations, rates.expert_flops_per_us
    w2_bytes = tensor_bytes(precision.weights, hidden, intermediate, weights=True)
    first = gemm_stage(
        names[0], rows_R=rows_R, touched_R=touched_R, out=2 * intermediate, inner=hidden, weight_bytes=w13_share,
        in_row_bytes=row_bytes(number, hidden), flops_per_us=flops_per_us,
    )  # fmt: skip
    middle = copy_stage(names[1], rows_R=rows_R, row_bytes=3 * WIDE_BYTES * intermediate, rates=rates)
    second = gemm_stage(
        names[3], rows_R=rows_R, touched_R=touched_R, out=hidden, inner=intermediate, weight_bytes=w2_bytes,
        in_row_bytes=row_bytes(number, intermediate), flops_per_us=flops_per_us,
    )  # fmt: skip
    stages = [first, middle, second]
    if is_encoded(number):
        part = "quantise" if names[2] == "quantise" else "compute"
        encode = quantise_stage(number, intermediate, rows_R=rows_R, rates=rates, name=names[2], part=part)
        stages.insert(2, encode)
    return stages


def shared_stages(
    model: Model, precision: Precision, *, tokens_R: np.ndarray, tp: int, rates: Rates
) -> tuple[Stage, ...]:
    """The shared experts over every token of the rank, as one MLP; empty for a model without them."""
    if not model.shared_intermediate:
        return ()
    intermediate = ceil(model.shared_intermediate / tp)
    stages = mlp_stages(
        ("shared_expert",) * 4,
        rows_R=tokens_R,
        touched_R=(tokens_R > 0).astype(np.float64),
        hidden=model.hidden,
        intermediate=intermediate,
        w13_share=tensor_bytes(precision.weights, 2 * intermediate, model.hidden, weights=True),
        precision=precision,
        rates=rates,
    )
    if is_encoded(precision.activations):
        number = precision.activations
        encode = quantise_stage(
            number, model.hidden, rows_R=tokens_R, rates=rates, name="shared_expert", part="compute"
        )
        stages.insert(0, encode)
    return tuple(stages)
