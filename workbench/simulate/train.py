"""The backward of one MoE layer as roofline stages and hops, beside the forward of ``stages`` and ``layer``.

T tokens a rank, P pairs a rank computes, B rows of its buffer after dispatch, H hidden, I intermediate (cut by tp),
K top-k. Every GEMM comes back twice, as a dgrad of the same work that reads the weights again and as a wgrad of the
same work that writes float32 gradients; combine comes back as a dispatch of gradients and dispatch as a combine of
them, in bf16, with the gradients of K combine weights behind each row. Names and parts are those of a measured step.

Idealised beside what ``stages`` says: encoding the master weights and the transposed operands that FP8 wgrads read is
memory traffic at full speed, and the sum of weight gradients over data-parallel ranks is not in it.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from workbench.simulate.compute import Rates, Stage, copy_stage, gemm_stage, is_encoded, rates_of
from workbench.simulate.formats import row_bytes
from workbench.simulate.stages import gate_stage, quantise_stage
from workbench.simulate.traffic import GroupTraffic
from workbench.simulate.weights import FLOAT32_BYTES, WIDE_BYTES
from workbench.spec.model import Model
from workbench.spec.parallel import experts_per_rank
from workbench.spec.precision import ELEMENT_BITS, NumberFormat, Precision, tensor_bytes
from workbench.spec.scenario import Cell
from workbench.workload.traffic import cell_router

FLOPS_FACTOR = 3
"""Forward and backward over forward alone."""

STATE_BYTES = {"none": 0, "sgd": 0, "adamw_bf16": 4, "adamw_fp32": 8}
"""What an optimizer keeps of one weight beside it and its gradient: two moments for adamw, none for plain sgd."""
MASTER_BYTES = {"none": 0, "sgd": 2, "adamw_bf16": 2, "adamw_fp32": 4}
"""The weight that the optimizer steps, where the one that is multiplied is narrower."""


@dataclass(frozen=True)
class BackwardStages:
    """Stages in order; ``pack`` and ``unpack`` are copies beside the exchanges."""

    pack: tuple[Stage, ...]
    experts: tuple[Stage, ...]
    unpack: tuple[Stage, ...]
    shared: tuple[Stage, ...]
    gate: tuple[Stage, ...]
    finish: tuple[Stage, ...]

    @property
    def all(self) -> tuple[Stage, ...]:
        return self.pack + self.experts + self.unpack + self.shared + self.gate + self.finish


@dataclass(frozen=True)
class _Mlp:
    """The sizes of a gated MLP's backward: its rows and touched experts on each rank, and what it is encoded in."""

    names: tuple[str, str, str, str, str]
    rows_R: np.ndarray
    touched_R: np.ndarray
    hidden: int
    intermediate: int
    precision: Precision
    rates: Rates


def gradient_format(precision: Precision) -> NumberFormat:
    """The format of gradients; left out it is E5M2 beside E4M3 of the same scales, and E4M3 beside MXFP8."""
    if precision.gradients is not None:
        return precision.gradients
    weights = precision.weights
    if weights.format != "e4m3" or weights.granularity == "mx":
        return weights
    return NumberFormat(format="e5m2", granularity=weights.granularity)


def gradient_row_bytes(cell: Cell) -> tuple[int, int]:
    """Bytes of a row of ``combine.backward`` and of ``dispatch.backward``."""
    assert cell.model is not None
    return WIDE_BYTES * cell.model.hidden, WIDE_BYTES * (cell.model.hidden + cell.model.top_k)


def weights_stage(cell: Cell, traffic: GroupTraffic, *, rates: Rates) -> tuple[Stage, ...]:
    """The master weights encoded once a step; nothing in bf16."""
    model, number = cell.model, cell.precision.weights
    assert model is not None
    if not is_encoded(number):
        return ()
    one_R = np.ones(traffic.num_ranks)
    moved = expert_elements(cell) * (WIDE_BYTES + ELEMENT_BITS[number.format] / 8)
    return (copy_stage("quantise", rows_R=one_R, row_bytes=moved, rates=rates, kernels=2, part="quantise"),)


def backward_stages(cell: Cell, traffic: GroupTraffic) -> BackwardStages:
    """The local stages of the backward of the tokens of ``traffic``."""
    model, tokens_R = cell.model, traffic.tokens_R
    assert model is not None
    rates = rates_of(cell.cluster.hardware, cell.precision)
    out_row, back_row = gradient_row_bytes(cell)
    pack: tuple[Stage, ...] = ()
    unpack: tuple[Stage, ...] = ()
    if traffic.hops:
        kernels = len(traffic.hops)
        sent_R, packed_R = (sum(getattr(hop, rows) for hop in traffic.hops) for rows in ("sent_R", "packed_R"))
        pack = (_copy("combine", packed_R, 2 * out_row, rates, kernels=kernels, part="combine"),)
        moved_R = sent_R * back_row + (tokens_R + sum(hop.received_R for hop in traffic.hops[:-1])) * out_row
        unpack = (_copy("dispatch", moved_R, 1, rates, kernels=kernels, part="dispatch"),)
    shared: list[Stage] = []
    if model.shared_intermediate:
        width = ceil(model.shared_intermediate / cell.parallel.tp)
        names, touched_R = ("shared_expert.backward",) * 5, (tokens_R > 0).astype(float)
        shared = _mlp(_Mlp(names, tokens_R, touched_R, model.hidden, width, cell.precision, rates))
    return BackwardStages(
        pack=pack,
        experts=tuple(_expert_stages(cell, model, traffic, rates=rates)),
        unpack=unpack,
        shared=tuple(shared),
        gate=(_twice(gate_stage(model, cell_router(cell), tokens_R, rates=rates)),),
        finish=(_copy("finish", tokens_R, 4 * out_row, rates),),
    )


def gradient_sums(cell: Cell, num_parts: int, traffic: GroupTraffic) -> tuple[Stage, ...]:
    """Weight gradients of the parts added up in float32, whole, one part after the other."""
    if num_parts == 1:
        return ()
    assert cell.model is not None
    rates, ones_R = rates_of(cell.cluster.hardware, cell.precision), np.ones(traffic.num_ranks)
    moved = 3 * FLOAT32_BYTES * expert_elements(cell)
    return (_copy("finish", (num_parts - 1) * ones_R, moved, rates, kernels=2 * (num_parts - 1)),)


def train_bytes(cell: Cell, *, pairs: float) -> dict[str, int]:
    """What a step holds beside the forward's memory: float32 weight gradients, and rows kept for the backward."""
    model = cell.model
    assert model is not None
    width = ceil(model.moe_intermediate / cell.parallel.tp)
    gradients = FLOAT32_BYTES * (expert_elements(cell) + shared_elements(cell))
    return {"gradients": gradients, "saved_activations": round(pairs * WIDE_BYTES * (2 * model.hidden + 3 * width))}


def optimizer_bytes(cell: Cell, *, elements: int) -> dict[str, int]:
    """State of ``cell.optimizer`` for so many weights: moments, and master weights wider than what is multiplied."""
    if cell.optimizer == "none":
        return {}
    stored, master = ELEMENT_BITS[cell.precision.weights.format] / 8, MASTER_BYTES[cell.optimizer]
    return {"optimizer": elements * (STATE_BYTES[cell.optimizer] + (master if master > stored else 0))}


def shared_elements(cell: Cell) -> int:
    """Weights of the shared experts of one GPU and layer."""
    assert cell.model is not None
    return 3 * cell.model.hidden * ceil(cell.model.shared_intermediate / cell.parallel.tp)


def expert_elements(cell: Cell) -> int:
    """Weights of the routed experts of one GPU and layer."""
    model, redundant = cell.model, cell.balance.placement.redundant_experts
    assert model is not None
    assert isinstance(redundant, int), "a planned cell has its redundancy decided"
    slots = experts_per_rank(model.num_experts, cell.ep, redundant=redundant)
    return 3 * slots * model.hidden * ceil(model.moe_intermediate / cell.parallel.tp)


def _expert_stages(cell: Cell, model: Model, traffic: GroupTraffic, *, rates: Rates) -> list[Stage]:
    """unpermute.backward, the MLP's, permute.backward."""
    row, pairs_R = WIDE_BYTES * model.hidden, traffic.pairs_R
    width = ceil(model.moe_intermediate / cell.parallel.tp)
    names = ("gemm2.dgrad", "gemm2.wgrad", "activation.backward", "gemm1.dgrad", "gemm1.wgrad")
    return [
        # Reads the gradient and the output of every pair and writes the gradient of its row.
        _copy("unpermute", pairs_R, 3 * row, rates),
        *_mlp(_Mlp(names, pairs_R, traffic.touched_R, model.hidden, width, cell.precision, rates)),
        _copy("permute", pairs_R + traffic.buffer_rows_R, row, rates),
    ]


def _mlp(mlp: _Mlp) -> list[Stage]:
    number, width = gradient_format(mlp.precision), mlp.intermediate
    second = _gemm_pair(mlp, mlp.names[0], mlp.names[1], out=mlp.hidden, inner=width)
    first = _gemm_pair(mlp, mlp.names[3], mlp.names[4], out=2 * width, inner=mlp.hidden)
    # Reads gate, up and the gradient, and writes two gradients.
    middle = copy_stage(mlp.names[2], rows_R=mlp.rows_R, row_bytes=5 * WIDE_BYTES * width, rates=mlp.rates)
    return [*_encoded(mlp, number, mlp.hidden), *second, middle, *_encoded(mlp, number, 2 * width), *first]


def _encoded(mlp: _Mlp, number: NumberFormat, columns: int) -> list[Stage]:
    if not is_encoded(number):
        return []
    own = mlp.names[0].startswith("gemm")
    name, part = ("quantise.backward", "quantise") if own else (mlp.names[0], "compute")
    return [quantise_stage(number, columns, rows_R=mlp.rows_R, rates=mlp.rates, name=name, part=part)]


def _gemm_pair(mlp: _Mlp, dgrad: str, wgrad: str, *, out: int, inner: int) -> list[Stage]:
    """dgrad [rows, out] x [out, inner] and wgrad [out, rows] x [rows, inner] of the product rows x inner to out."""
    precision, rates = mlp.precision, mlp.rates
    grads = row_bytes(gradient_format(precision), out)
    rows = row_bytes(precision.activations, inner)
    return [
        gemm_stage(
            dgrad, rows_R=mlp.rows_R, touched_R=mlp.touched_R, out=inner, inner=out,
            weight_bytes=tensor_bytes(precision.weights, out, inner, weights=True), in_row_bytes=grads,
            flops_per_us=rates.expert_flops_per_us,
        ),
        Stage(
            wgrad,
            mlp.rows_R * (grads + rows) + mlp.touched_R * (FLOAT32_BYTES * out * inner),
            2.0 * mlp.rows_R * out * inner,
            1,
            rates.expert_flops_per_us,
        ),
    ]  # fmt: skip


def _copy(
    name: str, rows_R: np.ndarray, moved: float, rates: Rates, *, kernels: int = 1, part: str = "compute"
) -> Stage:
    return copy_stage(f"{name}.backward", rows_R=rows_R, row_bytes=moved, rates=rates, kernels=kernels, part=part)


def _twice(forward: Stage) -> Stage:
    return Stage(
        f"{forward.name}.backward", 2 * forward.bytes_R, 2 * forward.flops_R, 2 * forward.kernels, forward.flops_per_us
    )
