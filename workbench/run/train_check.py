"""The correctness gate of a training step: its gradients against float32 autograd of the reference in one process.

Each rank checks its own part. Gradients of its tokens, of the gate and of the shared expert come from its tokens and
all experts; those of its slots' experts from the tokens of all ranks that were dealt to the slot. Up to
``MAX_CHECKED_TOKENS`` tokens a rank everything is compared; beyond that, gradients of evenly spaced tokens and, where
a rank holds more than ``MAX_CHECKED_SLOTS``, of evenly spaced slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.backward import router_weights
from kernels.formats import FORMATS
from kernels.reference import expert_reference, moe_reference
from workbench.comm.payload import FORMAT_OF_DTYPE
from workbench.measure.gate import BF16_ROUNDING, Deviation, deviation
from workbench.run.check import CheckFailed
from workbench.run.inputs import reference_weights
from workbench.run.prepare import Prepared
from workbench.run.train_layer import TrainLayer
from workbench.run.train_prepare import slots_dealt, upstream_gradients
from workbench.run.train_step import TrainRun
from workbench.spec.scenario import Cell
from workbench.workload.data import rank_activations

MAX_CHECKED_TOKENS = 256
MAX_CHECKED_SLOTS = 4


@dataclass(frozen=True)
class _Compared:
    """A gradient by name with what autograd gives, both as matrices."""

    name: str
    actual: Tensor
    expected: Tensor

    @property
    def deviation(self) -> Deviation:
        shape = (-1, self.actual.shape[-1]) if self.actual.numel() else (0, 1)
        return deviation(self.actual.reshape(shape), self.expected.reshape(shape))


def check_gradients(cell: Cell, prepared: Prepared, run: TrainRun) -> float:
    """Largest relative error of any gradient of the last step. Raises CheckFailed naming those that are too far off."""
    limit, faults, worst = gradient_limit(cell, run.step), [], 0.0
    for compared in (*_token_side(cell, prepared, run), *_expert_side(cell, prepared, run)):
        error = compared.deviation.rel_error
        worst = max(worst, error)
        if not error <= limit:
            faults.append(f"gradient of {compared.name} differs from float32 autograd by {error:.3g}")
    if faults:
        raise CheckFailed(f"{'; '.join(faults)}; {cell.precision.name} explains {limit:.3g}")
    return worst


def gradient_limit(cell: Cell, step: TrainLayer) -> float:
    """Largest relative error of a gradient that rounding explains.

    A gradient passes through up to four products: both of the forward pass, whose results it is multiplied with, and
    two of its own. Each has two rounded operands, whose errors add in squares; a factor 2 covers the activation and its
    derivative, and 16 bf16 roundings what is stored between the products and sent.
    """
    recipe = step.recipe
    weights, inputs, grads = (FORMATS[f].tolerance for f in (recipe.weights, recipe.activations, recipe.gradients))
    wire = [FORMATS[FORMAT_OF_DTYPE[d]].tolerance for d in (cell.dispatch.dispatch_dtype, cell.dispatch.combine_dtype)]
    squares = 4 * weights**2 + 3 * inputs**2 + 2 * grads**2 + sum(w**2 for w in wire)
    return 2 * squares**0.5 + 16 * BF16_ROUNDING


def _token_side(cell: Cell, prepared: Prepared, run: TrainRun) -> Iterator[_Compared]:
    step, layer, num_tokens = run.step, prepared.layer, len(prepared.layer.x_TH)
    whole = num_tokens <= MAX_CHECKED_TOKENS
    rows = torch.linspace(0, max(num_tokens - 1, 0), min(num_tokens, MAX_CHECKED_TOKENS)).round().long()
    rows = rows.to(layer.x_TH.device)
    x = layer.x_TH[rows].float().requires_grad_()
    gate = layer.gate[0].float().requires_grad_() if layer.gate else None
    shared = _shared_leaves(step)
    y = _reference_output(cell, prepared, step, rows, (x, gate, shared))
    leaves = [leaf for leaf in (x, gate, *shared) if leaf is not None]
    grads = torch.autograd.grad(y, leaves, step.upstream_TH[rows].float(), allow_unused=True, materialize_grads=True)
    expected = dict(zip([id(leaf) for leaf in leaves], grads, strict=True))
    yield _Compared("the tokens", run.grads.x_TH[rows], expected[id(x)])
    if not whole:
        return
    if gate is not None and step.router["kind"] != "random":
        yield _Compared("the gate", run.grads.gate_HE, expected[id(gate)])
    if shared:
        yield _Compared("the shared expert's w13", run.grads.shared.w13, expected[id(shared[0])])
        yield _Compared("the shared expert's w2", run.grads.shared.w2, expected[id(shared[1])])


def _shared_leaves(step: TrainLayer) -> tuple[Tensor, ...]:
    if step.shared_weights is None:
        return ()
    return tuple(w.float().requires_grad_() for w in (step.shared_weights.w13, step.shared_weights.w2))


def _reference_output(
    cell: Cell, prepared: Prepared, step: TrainLayer, rows: Tensor,
    leaves: tuple[Tensor, Tensor | None, tuple[Tensor, ...]],
) -> Tensor:  # fmt: skip
    """float32 output of some tokens; their logits are the traffic's, with the derivative of the gate's product."""
    (x, gate, shared), layer, rank = leaves, prepared.layer, prepared.group_rank
    ids_TK = torch.from_numpy(np.array(prepared.traffic.ids[rank])).to(x.device)[rows]
    logits_TE = layer.logits_TE[rows]
    if gate is not None:
        product = x @ gate
        logits_TE = logits_TE + (product - product.detach())
    weights_TK = router_weights(logits_TE, ids_TK, **step.router)
    slots_TK = slots_dealt(prepared)[rank]
    experts_TK = np.where(slots_TK >= 0, prepared.expert_map.slots.reshape(-1)[np.maximum(slots_TK, 0)], -1)
    ids_TK = torch.from_numpy(experts_TK).to(x.device)[rows]
    experts = reference_weights(cell.model, seed=cell.workload.seed, device=x.device)
    return moe_reference(
        x, ids_TK, weights_TK, experts.w13, experts.w2, bias13=experts.bias13, bias2=experts.bias2,
        activation=step.activation, weight_on=layer.weight_on, shared_w13=shared[0] if shared else None,
        shared_w2=shared[1] if shared else None,
    )  # fmt: skip


def _expert_side(cell: Cell, prepared: Prepared, run: TrainRun) -> Iterator[_Compared]:
    """Gradients of the slots' weights, joined over the slots compared, so that an idle one counts as the rest do."""
    num_slots, grads, device = prepared.layer.num_slots, run.grads.experts, prepared.layer.x_TH.device
    several = prepared.layer.x_TH.shape[0] <= MAX_CHECKED_TOKENS
    count = num_slots if several else min(num_slots, MAX_CHECKED_SLOTS)
    slots = np.unique(np.linspace(0, num_slots - 1, count).round().astype(int)).tolist()
    inputs = [_rank_inputs(cell, prepared.step, rank, device) for rank in range(cell.ep)]
    expected = [_slot_gradients(prepared, run.step, slot, inputs) for slot in slots]
    names = ("w13", "w2", "bias13", "bias2")
    for name, wanted in zip(names, zip(*expected, strict=True), strict=False):
        yield _Compared(f"the experts' {name}", getattr(grads, name)[slots], torch.stack(wanted))


def _rank_inputs(cell: Cell, step: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    x_TH = rank_activations(cell, rank=rank, step=step)
    return x_TH.to(device), upstream_gradients(cell, rank=rank).to(device)


def _slot_gradients(
    prepared: Prepared, step: TrainLayer, slot: int, inputs: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, ...]:
    """float32 gradients of one slot's weights and biases from every pair dealt to it, ranks in order."""
    expert_map, traffic = prepared.expert_map, prepared.traffic
    wanted = prepared.group_rank * expert_map.slots_per_rank + slot
    at = slots_dealt(prepared) == wanted
    rows, grads, scales = [], [], []
    for rank, (x_TH, upstream_TH) in enumerate(inputs):
        token, k = np.nonzero(at[rank])
        index = torch.from_numpy(token).to(x_TH.device)
        rows.append(x_TH[index].float())
        grads.append(upstream_TH[index].float())
        scales.append(torch.from_numpy(traffic.weights[rank][token, k]).to(x_TH.device))
    x, upstream, scale = torch.cat(rows), torch.cat(grads), torch.cat(scales)[:, None]
    raw = step.weights
    leaves = [t[slot].float().requires_grad_() for t in (raw.w13, raw.w2, raw.bias13, raw.bias2) if t is not None]
    biases = {"bias13": leaves[2], "bias2": leaves[3]} if len(leaves) > 2 else {}
    on_input = prepared.layer.weight_on == "input"
    y = expert_reference(x * scale if on_input else x, *leaves[:2], activation=step.activation, **biases)
    return torch.autograd.grad(y, leaves, upstream if on_input else upstream * scale)
