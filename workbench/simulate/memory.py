"""Does it fit: bytes of the worst GPU against its memory. GB is 10^9 bytes, GiB 2^30; texts print GiB and bytes.

Idealised: no allocator waste, no runtime context, no CUDA-graph pools; activations of one layer live at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from workbench.simulate.buffers import dispatch_buffer_bytes
from workbench.simulate.context import group_tokens, kv_cache_bytes
from workbench.simulate.formats import row_bytes
from workbench.simulate.traffic import GroupTraffic
from workbench.simulate.train import expert_elements, optimizer_bytes, shared_elements, train_bytes
from workbench.simulate.weights import (
    FLOAT32_BYTES,
    WIDE_BYTES,
    attention_bytes,
    dense_elements,
    dense_format,
    mlp_bytes,
    moe_layer_weights,
    resident_experts,
)
from workbench.spec.model import Model
from workbench.spec.parallel import experts_per_rank
from workbench.spec.scenario import Cell

GIB = 2**30
WEIGHT_PARTS = ("routed_experts", "shared_expert", "router", "attention", "dense_mlp", "embedding")


@dataclass(frozen=True)
class MemoryFit:
    """Bytes by part of one GPU, against its memory; ``capacity_bytes`` 0 means that the memory is not known.

    ``complete`` is False when the model's attention is not known, so that the need is a lower bound.
    """

    parts: Mapping[str, int]
    capacity_bytes: int
    complete: bool = True

    @property
    def needed_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def weight_bytes(self) -> int:
        return sum(size for part, size in self.parts.items() if part in WEIGHT_PARTS)

    @property
    def shortage_bytes(self) -> int:
        return max(0, self.needed_bytes - self.capacity_bytes) if self.capacity_bytes else 0

    @property
    def fits(self) -> bool:
        return self.shortage_bytes == 0

    @property
    def text(self) -> str:
        """One line with units, such as ``needs 39.60 GiB of 40.00 GiB a GPU: 0.40 GiB free``."""
        need = f"needs {self.needed_bytes / GIB:.2f} GiB"
        if not self.capacity_bytes:
            return f"{need} a GPU; its memory is not known"
        head = f"{need} of {self.capacity_bytes / GIB:.2f} GiB a GPU"
        if self.fits:
            return f"{head}: {(self.capacity_bytes - self.needed_bytes) / GIB:.2f} GiB free"
        return f"{head}: short by {self.shortage_bytes / GIB:.2f} GiB ({self.shortage_bytes} bytes)"


def _weights(cell: Cell, model: Model, *, num_layers: int) -> dict[str, int]:
    redundant = cell.balance.placement.redundant_experts
    assert isinstance(redundant, int), "a planned cell has its redundancy decided"
    layer = moe_layer_weights(model, cell.precision, ep=cell.ep, tp=cell.parallel.tp, redundant=redundant)
    slots = experts_per_rank(model.num_experts, cell.ep, redundant=redundant)
    layer["routed_experts"] = layer["routed_experts"] // slots * resident_experts(cell, slots)
    return {part: size * num_layers for part, size in layer.items()}


def _work_bytes(cell: Cell, model: Model, *, pairs: float, held_rows: float | None) -> dict[str, int]:
    """Buffers of one layer: rows on the wire both ways, and the widest two neighbours of the expert stages."""
    intermediate = ceil(model.moe_intermediate / cell.parallel.tp)
    numbers = cell.precision.activations
    rows_in = row_bytes(numbers, model.hidden)
    gate_up, middle = WIDE_BYTES * 2 * intermediate, WIDE_BYTES * intermediate + row_bytes(numbers, intermediate)
    widest = max(rows_in + gate_up, gate_up + middle, middle + WIDE_BYTES * model.hidden)
    tokens = cell.workload.tokens_per_rank
    return {
        "dispatch_buffers": dispatch_buffer_bytes(cell, held_rows=held_rows),
        "activations": round(pairs * widest + 2 * tokens * model.hidden * WIDE_BYTES),
    }


def layer_fit(cell: Cell, traffic: GroupTraffic) -> tuple[MemoryFit, int]:
    """Memory of the ``workload.layers`` layers that a layer scope holds, on its worst rank; and that rank.

    Weights are the same on every rank (slots are dealt evenly); buffers follow the routed traffic.
    """
    assert cell.model is not None
    held_R = _held_rows(traffic)
    worst = int(np.argmax(traffic.pairs_R + held_R))
    work = _work_bytes(cell, cell.model, pairs=float(traffic.pairs_R[worst]), held_rows=float(held_R[worst]))
    parts = _weights(cell, cell.model, num_layers=cell.workload.layers) | work
    if cell.scope.kind == "train_step":
        kept = train_bytes(cell, pairs=float(traffic.pairs_R[worst]))
        kept |= optimizer_bytes(cell, elements=expert_elements(cell) + shared_elements(cell))
        parts |= {part: size * cell.workload.layers for part, size in kept.items()}
    return MemoryFit(parts, cell.cluster.memory_bytes), worst


def _held_rows(traffic: GroupTraffic) -> np.ndarray:
    """Rows on the wire that a rank holds at once [R]: of the fullest hop, what it was given, sends and receives."""
    held_R = given_R = np.zeros(traffic.num_ranks)
    for hop in traffic.hops:
        held_R = np.maximum(held_R, given_R + hop.packed_R + hop.received_R)
        given_R = hop.received_R
    return held_R


def model_fit(cell: Cell, traffic: GroupTraffic | None = None) -> MemoryFit:
    """Memory of the whole model on one GPU of the cell's largest pipeline stage: of the rank that needs most under
    ``traffic``, or of any with even traffic.

    Weights of experts by ep, tp and pp; attention, dense MLPs and embeddings by attn_tp and pp, whole on every
    data-parallel rank; the key-value cache of the rank's sequences (``context``). In training gradients, what the
    backward reads of all layers of the micro-batches under way, and the optimizer's state, which is not sharded over
    data-parallel ranks. Raises ValueError for a cell without a model.
    """
    model = cell.model
    if model is None:
        raise ValueError(f"scope {cell.scope.kind} has no model to fit")
    pp, pairs, held = cell.parallel.pp, float(cell.workload.tokens_per_rank * model.top_k), None
    if traffic is not None:
        held_R = _held_rows(traffic)
        worst = int(np.argmax(traffic.pairs_R + held_R))
        pairs, held = float(traffic.pairs_R[worst]), float(held_R[worst])
    moe_layers = ceil(model.moe_layers / pp)
    parts = _weights(cell, model, num_layers=moe_layers) | _dense_weights(cell, model)
    if cell.workload.phase == "train":
        parts |= _train_parts(cell, model, pairs=pairs, moe_layers=moe_layers)
    elif model.attention is not None:
        parts["kv_cache"] = kv_cache_bytes(cell, model, model.attention)
    parts |= _work_bytes(cell, model, pairs=pairs, held_rows=held)
    return MemoryFit(parts, cell.cluster.memory_bytes, complete=model.attention is not None)


def _train_parts(cell: Cell, model: Model, *, pairs: float, moe_layers: int) -> dict[str, int]:
    """Gradients, what the backward reads, and the optimizer's state of a pipeline stage; nothing is computed again."""
    under_way = min(cell.parallel.pp, cell.workload.micro_batches)
    kept = train_bytes(cell, pairs=pairs)
    dense = dense_elements(model, attn_tp=cell.parallel.attn_tp, pp=cell.parallel.pp)
    saved = kept["saved_activations"] * moe_layers
    if model.attention is not None:
        # Beside each product its input: x twice, the heads' queries, keys and values, and what attention gives.
        width = 4 * model.hidden + 4 * model.attention.num_heads * model.attention.head_dim // cell.parallel.attn_tp
        saved += round(group_tokens(cell)) * WIDE_BYTES * width * ceil(model.total_layers / cell.parallel.pp)
    elements = (expert_elements(cell) + shared_elements(cell)) * moe_layers + dense
    return {
        "gradients": kept["gradients"] * moe_layers + FLOAT32_BYTES * dense,
        "saved_activations": saved * under_way,
    } | optimizer_bytes(cell, elements=elements)


def _dense_weights(cell: Cell, model: Model) -> dict[str, int]:
    number, attn_tp, pp = dense_format(model, cell.precision), cell.parallel.attn_tp, cell.parallel.pp
    parts: dict[str, int] = {}
    dense_layers = model.total_layers - model.moe_layers
    if dense_layers and model.dense_intermediate:
        one = mlp_bytes(model.hidden, ceil(model.dense_intermediate / attn_tp), weights=number)
        parts["dense_mlp"] = one * ceil(dense_layers / pp)
    if model.attention is not None:
        one = attention_bytes(model.attention, model.hidden, number=number, attn_tp=attn_tp)
        parts["attention"] = one * ceil(model.total_layers / pp)
        tables = 2 if pp == 1 else 1
        parts["embedding"] = tables * WIDE_BYTES * ceil(model.attention.vocabulary / attn_tp) * model.hidden
    return parts
