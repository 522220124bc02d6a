"""The three products of a grouped linear layer in training: forward, and for its gradients dgrad and wgrad.

M rows in expert order, E experts, N output columns, K input columns.
forward y[m] = W[e] x[m]; dgrad dx[m] = W[e]^T dy[m], the same grouped GEMM with the weights transposed;
wgrad dW[e] = sum over the rows of e of dy[m] x[m]^T.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.backward.recipe import TrainRecipe
from kernels.formats import Quantised
from kernels.grouped_gemm import grouped_gemm, quantise_rows
from kernels.grouped_gemm.dgrad import grouped_dgrad
from kernels.grouped_gemm.wgrad import grouped_wgrad
from kernels.scaling import Scaling


@dataclass(frozen=True, eq=False)
class TrainMatrix:
    """Weights of one linear layer as a step reads them: ``forward`` [E, N, K] and ``transposed`` [E, K, N] for dgrad.

    ``name`` tells the layer's operands apart in the scaling histories.
    """

    name: str
    forward: Tensor | Quantised
    transposed: Tensor | Quantised

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as forward reads them."""
        return self.forward.nbytes


@dataclass(frozen=True, eq=False)
class Operand:
    """Rows of a product: ``encoded`` as forward or dgrad reads them, ``kept`` as wgrad does."""

    encoded: Tensor | Quantised
    kept: Tensor | Quantised


def prepare_matrix(w_ENK: Tensor, *, name: str, recipe: TrainRecipe, scaling: Scaling) -> TrainMatrix:
    """Encode master weights for a step. A scale for a tensor or a 128x128 block serves both directions.

    Other scales run along the reduced dimension, which dgrad swaps, so the transposed weights are encoded anew.
    """
    if recipe.is_exact:
        return TrainMatrix(name, w_ENK, w_ENK.transpose(1, 2))
    rules = {"scale_rule": recipe.scale_rule, "overflow": recipe.overflow}
    forward = scaling.encode(w_ENK, name=f"{name}.weights", format=recipe.weights, weights=True, **rules)
    if recipe.weights == "bf16" or recipe.weights.endswith(("_tensor", "_block")):
        return TrainMatrix(name, forward, _swapped(forward))
    again = scaling.encode(
        w_ENK.transpose(1, 2).contiguous(), name=f"{name}.transposed", format=recipe.weights, weights=True, **rules
    )
    return TrainMatrix(name, forward, again)


def encode_inputs(
    rows_MK: Tensor, matrix: TrainMatrix, *, recipe: TrainRecipe, scaling: Scaling, backend: str = "auto"
) -> Operand:
    """Rows as the forward product reads them, and with current scaling as ``kernels.grouped_gemm`` encodes them."""
    name = recipe.activations
    if recipe.is_exact or name == "bf16" or scaling.kind == "delayed":
        return _operand(rows_MK, name, label=f"{matrix.name}.inputs", recipe=recipe, scaling=scaling)
    assert isinstance(matrix.forward, Quantised)
    return _kept(quantise_rows(rows_MK, name, weights=matrix.forward, backend=backend), rows_MK)


def encode_gradients(grads_MN: Tensor, matrix: TrainMatrix, *, recipe: TrainRecipe, scaling: Scaling) -> Operand:
    """Gradients of a product's output as dgrad and wgrad read them."""
    label = f"{matrix.name}.gradients"
    return _operand(grads_MN, recipe.gradients, label=label, recipe=recipe, scaling=scaling)


def multiply(
    operand: Operand, offsets: Tensor, matrix: TrainMatrix, *, recipe: TrainRecipe, bias_EN: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:  # fmt: skip
    """[M, N]: the forward product, plus bias."""
    weights, rows = matrix.forward, operand.encoded
    if isinstance(weights, Quantised):
        how = {"activations_format": recipe.activations, "backend": backend}
        return grouped_gemm(rows, offsets, weights, bias_EN=bias_EN, **how)
    assert isinstance(rows, Tensor)
    return _exact_product(rows, offsets, weights, bias_EN)


def dgrad(
    operand: Operand, offsets: Tensor, matrix: TrainMatrix, *, recipe: TrainRecipe, backend: str = "auto"
) -> Tensor:
    """[M, K]: gradients of the inputs from those of the outputs. Rows past the last offset come back as zeros."""
    weights = matrix.transposed
    if isinstance(weights, Quantised):
        return grouped_dgrad(operand.encoded, offsets, weights, grads_format=recipe.gradients, backend=backend)
    assert isinstance(operand.encoded, Tensor)
    return _exact_product(operand.encoded, offsets, weights, None)


def wgrad(
    gradients: Operand, inputs: Operand, offsets: Tensor, *, recipe: TrainRecipe, backend: str = "auto"
) -> Tensor:
    """float32 [E, N, K] (``exact``: in the operands' dtype): gradients of the weights."""
    return grouped_wgrad(
        gradients.kept,
        inputs.kept,
        offsets,
        grads_format=recipe.gradients,
        rows_format=recipe.activations,
        scale_rule=recipe.scale_rule,
        overflow=recipe.overflow,
        backend=backend,
    )


def bias_grad(grads_MN: Tensor, offsets: Tensor, *, backend: str = "auto") -> Tensor:
    """[E, N], float32 at least: sum of the gradient rows of each expert, without waiting for the device.

    Rows [1], [2], [4], [8] with offsets [0, 1, 1, 3] give [1], [0], [6]: the last row belongs to no expert.
    """
    num_experts, wide = offsets.shape[0] - 1, torch.promote_types(grads_MN.dtype, torch.float32)
    if grads_MN.is_cuda and grads_MN.dtype == torch.bfloat16:
        # Atomic additions would come in another order in every run; a product by ones does not.
        ones_M1 = grads_MN.new_ones(grads_MN.shape[0], 1)
        return grouped_wgrad(grads_MN, ones_M1, offsets, grads_format="bf16", rows_format="bf16", backend=backend)[
            ..., 0
        ]
    row_M = torch.arange(grads_MN.shape[0], device=grads_MN.device)
    expert_M = torch.searchsorted(offsets[1:].contiguous(), row_M, right=True)
    sums = torch.zeros(num_experts + 1, grads_MN.shape[1], dtype=wide, device=grads_MN.device)
    return sums.index_add_(0, expert_M, grads_MN.to(wide))[:num_experts]


def _operand(rows: Tensor, name: str, *, label: str, recipe: TrainRecipe, scaling: Scaling) -> Operand:
    if recipe.is_exact or name == "bf16":
        rows = rows if recipe.is_exact else rows.to(torch.bfloat16)
        return Operand(rows, rows)
    rules = {"scale_rule": recipe.scale_rule, "overflow": recipe.overflow}
    return _kept(scaling.encode(rows, name=label, format=name, **rules), rows)


def _kept(encoded: Quantised, rows: Tensor) -> Operand:
    """wgrad reads codes only where their scale does not run along the columns."""
    return Operand(encoded, encoded if encoded.format.endswith("_tensor") else rows)


def _exact_product(rows_MK: Tensor, offsets: Tensor, w_ENK: Tensor, bias_EN: Tensor | None) -> Tensor:
    bounds = offsets.tolist()
    out_MN = rows_MK.new_zeros(rows_MK.shape[0], w_ENK.shape[1])
    for e, w_NK in enumerate(w_ENK.to(rows_MK.dtype)):
        part = slice(bounds[e], bounds[e + 1])
        out_MN[part] = rows_MK[part] @ w_NK.T
        if bias_EN is not None:
            out_MN[part] += bias_EN[e].to(rows_MK.dtype)
    return out_MN


def _swapped(q: Quantised) -> Quantised:
    """[E, N, K] as [E, K, N]: codes and block scales exchanged, nothing rounded again."""
    scale = q.scale.transpose(1, 2) if q.format.endswith("_block") else q.scale
    num_experts, rows, columns = q.shape
    data = q.data.transpose(1, 2)
    # FP8 matrix instructions read along the reduced dimension; BF16 ones do not mind.
    data = data if q.format == "bf16" else data.contiguous()
    return replace(q, shape=(num_experts, columns, rows), data=data, scale=scale)
