"""The layer with gradients: autograd functions over permute, expert MLP and combine, and the whole layer of them.

T tokens, E experts, K top-k, H hidden, I intermediate, M rows in expert order.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from kernels.activation import Activation
from kernels.backend import gemm_backend_on
from kernels.backward.experts import TrainExperts, experts_backward, experts_forward, prepare_experts
from kernels.backward.recipe import TrainRecipe, train_recipe
from kernels.backward.rows import combine_backward, gather_backward, scale_backward, sum_rows
from kernels.moe import WEIGHT_ON
from kernels.permute import Permutation, gather_rows, sort_by_expert
from kernels.scaling import Scaling


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x_TH: Tensor, perm: Permutation, shape: tuple[int, int], backend: str) -> Tensor:
        ctx.perm, ctx.shape, ctx.backend = perm, shape, backend
        return gather_rows(x_TH, perm, shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grads_MH: Tensor):
        grads_TH = gather_backward(grads_MH, ctx.perm, shape=ctx.shape, backend=ctx.backend)
        return grads_TH.to(grads_MH.dtype), None, None, None


class _Scale(torch.autograd.Function):
    """Rows times their pair's weight, for routers whose weight acts on the input."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows_MH: Tensor, weights_TK: Tensor, perm: Permutation) -> Tensor:
        ctx.perm = perm
        ctx.save_for_backward(rows_MH, weights_TK)
        wide = torch.promote_types(rows_MH.dtype, torch.float32)
        return (rows_MH.to(wide) * weights_TK.reshape(-1)[perm.order, None].to(wide)).to(rows_MH.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grads_MH: Tensor):
        rows_MH, weights_TK = ctx.saved_tensors
        return *scale_backward(grads_MH, rows_MH, ctx.perm, weights_TK), None


class _Experts(torch.autograd.Function):
    """The master weights are inputs only so that their gradients have a place to go: ``experts`` holds them encoded."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, rows_MH: Tensor, w13: Tensor, w2: Tensor, bias13: Tensor | None, bias2: Tensor | None,
        offsets: Tensor, experts: TrainExperts, backend: str,
    ) -> Tensor:  # fmt: skip
        out_MH, ctx.saved = experts_forward(rows_MH, offsets, experts, backend=backend)
        ctx.experts, ctx.backend = experts, backend
        return out_MH

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grads_MH: Tensor):
        grads = experts_backward(grads_MH, ctx.saved, ctx.experts, backend=ctx.backend)
        return grads.rows, grads.w13, grads.w2, grads.bias13, grads.bias2, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, rows_MH: Tensor, weights_TK: Tensor, perm: Permutation, backend: str) -> Tensor:
        ctx.perm = perm
        ctx.save_for_backward(rows_MH, weights_TK)
        wide = torch.promote_types(rows_MH.dtype, torch.float32)
        return sum_rows(rows_MH, perm, weights_TK, out_dtype=wide, backend=backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grads_TH: Tensor):
        rows_MH, weights_TK = ctx.saved_tensors
        return *combine_backward(grads_TH, rows_MH, ctx.perm, weights_TK), None, None


def train_layer(
    x_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    w13_E2IH: Tensor,
    w2_EHI: Tensor,
    *,
    precision: str | TrainRecipe,
    scaling: Scaling | None = None,
    bias13: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: Activation | None = None,
    weight_on: str = "output",
    shared_w13: Tensor | None = None,
    shared_w2: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """[T, H] in the dtype of ``x_TH``: ``kernels.moe.moe_layer`` with gradients of every floating-point argument.

    Weights are the master weights, encoded here as each step must; ``shared_w13`` [1, 2S, H] and ``shared_w2``
    [1, H, S]. With delayed scaling keep one ``scaling`` for the layer's life and call once a step. Ids of -1 add
    nothing and get no gradient. ``precision``: a name of TRAIN_RECIPES; ``exact`` multiplies in the dtype of ``x_TH``.
    """
    if weight_on not in WEIGHT_ON:
        raise ValueError(f"weight_on: {weight_on!r} is unknown; known: {', '.join(WEIGHT_ON)}")
    recipe = train_recipe(precision)
    scaling = scaling or Scaling(recipe.scaling, recipe.amax_history)
    if scaling.kind != recipe.scaling:
        raise ValueError(f"scaling: {scaling.kind} was given, precision {recipe.name} has {recipe.scaling}")
    how = {"recipe": recipe, "scaling": scaling, "activation": activation}
    experts = prepare_experts(
        w13_E2IH.detach(), w2_EHI.detach(), bias13=_detached(bias13), bias2=_detached(bias2), **how
    )
    perm = sort_by_expert(ids_TK, experts.num_experts, keep_dropped=_keeps_dropped(x_TH, recipe, backend))
    rows_MH = _Gather.apply(x_TH, perm, tuple(ids_TK.shape), backend)
    if weight_on == "input":
        rows_MH = _Scale.apply(rows_MH, weights_TK, perm)
        weights_TK = torch.ones_like(weights_TK)
    rows_MH = _Experts.apply(rows_MH, w13_E2IH, w2_EHI, bias13, bias2, perm.offsets, experts, backend)
    y_TH = _Combine.apply(rows_MH, weights_TK, perm, backend)
    if shared_w13 is not None and shared_w2 is not None:
        shared = prepare_experts(shared_w13.detach(), shared_w2.detach(), label="shared", **how)
        offsets = torch.arange(2, device=x_TH.device) * x_TH.shape[0]
        y_TH = y_TH + _Experts.apply(x_TH, shared_w13, shared_w2, None, None, offsets, shared, backend)
    return y_TH.to(x_TH.dtype)


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


def _keeps_dropped(x_TH: Tensor, recipe: TrainRecipe, backend: str) -> bool:
    """Dropped pairs stay, past the last offset, where cutting them off would wait for the device."""
    if recipe.is_exact or not x_TH.is_cuda:
        return False
    return gemm_backend_on(x_TH.device, backend, recipe.weights, recipe.activations) == "triton"
