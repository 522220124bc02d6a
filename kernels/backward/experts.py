"""The expert MLP of a training step on rows in expert order: forward that keeps what backward needs, and backward.

M rows, E experts, H hidden, I intermediate. A harness that times stages calls the pieces of ``products`` itself.
"""

from dataclasses import dataclass

from torch import Tensor

from kernels.activation import Activation
from kernels.backward.activation import activate, activation_backward
from kernels.backward.products import (
    Operand,
    TrainMatrix,
    bias_grad,
    dgrad,
    encode_gradients,
    encode_inputs,
    multiply,
    prepare_matrix,
    wgrad,
)
from kernels.backward.recipe import TrainRecipe
from kernels.scaling import Scaling


@dataclass(frozen=True, eq=False)
class TrainExperts:
    """Experts as a step reads them; ``bias13`` [E, 2I] and ``bias2`` [E, H] or None."""

    w13: TrainMatrix
    w2: TrainMatrix
    bias13: Tensor | None
    bias2: Tensor | None
    activation: Activation
    recipe: TrainRecipe
    scaling: Scaling

    @property
    def num_experts(self) -> int:
        return self.w13.forward.shape[0]


@dataclass(frozen=True, eq=False)
class Saved:
    """What backward reads: inputs of both products and the rows between them."""

    offsets: Tensor
    inputs: Operand
    h_M2I: Tensor
    middle: Operand


@dataclass(frozen=True, eq=False)
class ExpertGrads:
    """Gradients: rows [M, H] in their dtype, the rest float32 (``exact``: in the dtype of the rows)."""

    rows: Tensor
    w13: Tensor
    w2: Tensor
    bias13: Tensor | None
    bias2: Tensor | None


def prepare_experts(
    w13_E2IH: Tensor,
    w2_EHI: Tensor,
    *,
    recipe: TrainRecipe,
    scaling: Scaling,
    bias13: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: Activation | None = None,
    label: str = "experts",
) -> TrainExperts:
    """Encode master weights for one step. ``label`` keeps the histories of several sets of experts apart."""
    w13, w2 = (
        prepare_matrix(weights, name=f"{label}.{name}", recipe=recipe, scaling=scaling)
        for name, weights in (("w13", w13_E2IH), ("w2", w2_EHI))
    )
    return TrainExperts(w13, w2, bias13, bias2, activation or Activation(), recipe, scaling)


def experts_forward(
    rows_MH: Tensor, offsets: Tensor, experts: TrainExperts, *, backend: str = "auto"
) -> tuple[Tensor, Saved]:
    """[M, H] as ``kernels.moe.expert_mlp`` gives it in the same formats, and what backward needs."""
    how = {"recipe": experts.recipe, "backend": backend}
    inputs = encode_inputs(rows_MH, experts.w13, scaling=experts.scaling, **how)
    h_M2I = multiply(inputs, offsets, experts.w13, bias_EN=experts.bias13, **how)
    a_MI = activate(h_M2I, experts.activation, backend=backend)
    middle = encode_inputs(a_MI, experts.w2, scaling=experts.scaling, **how)
    out_MH = multiply(middle, offsets, experts.w2, bias_EN=experts.bias2, **how)
    return out_MH, Saved(offsets, inputs, h_M2I, middle)


def experts_backward(grads_MH: Tensor, saved: Saved, experts: TrainExperts, *, backend: str = "auto") -> ExpertGrads:
    """Gradients of the rows and of the weights from those of the output."""
    how, offsets = {"recipe": experts.recipe, "backend": backend}, saved.offsets
    outer = encode_gradients(grads_MH, experts.w2, recipe=experts.recipe, scaling=experts.scaling)
    grads_MI = dgrad(outer, offsets, experts.w2, **how)
    grads_M2I = activation_backward(grads_MI, saved.h_M2I, experts.activation)
    inner = encode_gradients(grads_M2I, experts.w13, recipe=experts.recipe, scaling=experts.scaling)
    return ExpertGrads(
        rows=dgrad(inner, offsets, experts.w13, **how),
        w13=wgrad(inner, saved.inputs, offsets, **how),
        w2=wgrad(outer, saved.middle, offsets, **how),
        bias13=None if experts.bias13 is None else bias_grad(grads_M2I, offsets, backend=backend),
        bias2=None if experts.bias2 is None else bias_grad(grads_MH, offsets, backend=backend),
    )
