"""The expert layer: prepared weights, the expert MLP on sorted rows, and the whole layer from routed tokens.

T tokens, E experts, K top-k, H hidden, I intermediate, M rows in expert order.
On a GPU the layer runs fused (``kernels.fused``); elsewhere, and where no fused kernel has the formats, piece by piece:
``sort_by_expert``, ``gather_rows``, ``quantise_rows``, ``grouped_gemm``, ``apply_activation``, ``combine_rows``.
"""

import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.activation import Activation, apply_activation
from kernels.backend import choose_layer_backend, layer_backend_on
from kernels.formats import FORMATS, Quantised
from kernels.grouped_gemm import grouped_gemm
from kernels.grouped_gemm.packed import PackedWeights, pack_weights
from kernels.grouped_gemm.packed_mx8 import pack_mxfp8
from kernels.permute import combine_rows, gather_rows, sort_by_expert
from kernels.recipes import RECIPES, Recipe

WEIGHT_ON = ("output", "input")
PACKED_FORMATS = ("mxfp4", "nvfp4", "mxfp8")
"""Weight formats whose fused kernels read a form of their own, made once."""


@dataclass(frozen=True)
class ExpertWeights:
    """Encoded experts: ``w13`` [E, 2I, H], ``w2`` [E, H, I], biases [E, 2I] and [E, H] or None.

    ``packed13`` and ``packed2`` hold FP4 weights a second time, as the fused kernels stream them, and of MXFP8 weights
    the same codes beside scales of another form; see ``packed``.
    """

    w13: Quantised
    w2: Quantised
    bias13: Tensor | None
    bias2: Tensor | None
    activation: Activation
    precision: str | Recipe
    packed13: PackedWeights | None = None
    packed2: PackedWeights | None = None

    @property
    def recipe(self) -> Recipe:
        return find_recipe(self.precision)

    @property
    def num_experts(self) -> int:
        return self.w13.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights with their scales and biases."""
        biases = sum(b.nbytes for b in (self.bias13, self.bias2) if b is not None)
        return self.w13.nbytes + self.w2.nbytes + biases

    def to(self, device: torch.device | str) -> "ExpertWeights":
        bias13, bias2 = (None if b is None else b.to(device) for b in (self.bias13, self.bias2))
        moved = ExpertWeights(self.w13.to(device), self.w2.to(device), bias13, bias2, self.activation, self.precision)
        return moved.packed() if moved.w13.data.is_cuda else moved

    @property
    def is_packed(self) -> bool:
        """True where the packed forms are there and made from these very weights."""
        pairs = ((self.packed13, self.w13), (self.packed2, self.w2))
        return all(packed is not None and packed.source is q.data for packed, q in pairs)

    def packed(self) -> "ExpertWeights":
        """The same with the packed forms of MX and NVFP4 weights, made once, outside any timing; others as they are."""
        if self.w13.format not in PACKED_FORMATS or self.is_packed:
            return self
        if self.w13.format == "mxfp8":
            return replace(self, packed13=pack_mxfp8(self.w13, gated=True), packed2=pack_mxfp8(self.w2))
        packed13 = pack_weights(self.w13, gated=True, interleaved=self.activation.interleaved)
        return replace(self, packed13=packed13, packed2=pack_weights(self.w2))

    def backend_on(self, device: torch.device, backend: str) -> str:
        """``triton`` where the fused layer runs these weights, else ``torch``; it wants ``PACKED_FORMATS`` packed.

        Raises ValueError for ``triton`` where it cannot run.
        """
        chosen = layer_backend_on(device, backend, self.w13.format, self.recipe.activations)
        if chosen == "triton" and self.w13.format in PACKED_FORMATS and not self.is_packed:
            if backend == "triton":
                raise ValueError(
                    f"experts: the fused kernels need packed {self.w13.format}; call packed() once beforehand"
                )
            return "torch"
        return chosen


def find_recipe(precision: str | Recipe) -> Recipe:
    """The named recipe, or one made by hand as it is; ValueError for an unknown name."""
    if isinstance(precision, Recipe):
        return precision
    if precision not in RECIPES:
        raise ValueError(f"precision: {precision!r} is unknown; known: {', '.join(RECIPES)}")
    return RECIPES[precision]


def prepare_weights(
    w13_E2IH: Tensor,
    w2_EHI: Tensor,
    *,
    precision: str | Recipe,
    bias13: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: Activation | None = None,
    scale_rule: str | None = None,
    overflow: str = "saturate",
) -> ExpertWeights:
    """Encode a layer's weights once, outside any timing. ``scale_rule``: None takes the format's own.

    Raises ValueError for an unknown precision or shapes that do not belong together.
    """
    _check_weights(w13_E2IH, w2_EHI, bias13, bias2)
    entry = FORMATS[find_recipe(precision).weights]
    rule = scale_rule or entry.scale_rules[0]
    w13, w2 = (entry.encode(w, weights=True, scale_rule=rule, overflow=overflow) for w in (w13_E2IH, w2_EHI))
    experts = ExpertWeights(w13, w2, bias13, bias2, activation or Activation(), precision)
    return experts.packed() if w13.data.is_cuda else experts


def expert_mlp(
    rows_MH: Tensor | Quantised, offsets: Tensor, experts: ExpertWeights, *, backend: str = "auto"
) -> Tensor:
    """BF16 [M, H]: gemm1, activation, gemm2 of rows in expert order; rows past the last offset give zeros.

    Rows may come encoded already in the recipe's activation format, as from an FP8 dispatch.
    """
    inputs = experts.recipe.activations
    device = rows_MH.data.device if isinstance(rows_MH, Quantised) else rows_MH.device
    if experts.backend_on(device, backend) == "triton" and rows_MH.shape[0]:
        from kernels.fused import fused_mlp

        return fused_mlp(rows_MH, offsets, experts)
    h_M2I = grouped_gemm(
        rows_MH, offsets, experts.w13, activations_format=inputs, bias_EN=experts.bias13, backend=backend
    )
    a_MI = apply_activation(h_M2I, experts.activation, backend=backend)
    return grouped_gemm(a_MI, offsets, experts.w2, activations_format=inputs, bias_EN=experts.bias2, backend=backend)


def moe_layer(
    x_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    experts: ExpertWeights,
    *,
    weight_on: str = "output",
    shared: ExpertWeights | None = None,
    backend: str = "auto",
) -> Tensor:
    """[T, H] in the dtype of ``x_TH``: routed experts weighted and summed in float32, plus the shared expert.

    Ids of -1 (dropped, or an expert of another rank) add nothing. ``weight_on``: ``output``, or ``input``, where the
    weight multiplies the token before its expert (Llama-4). With the Triton backend nothing waits for the device.
    """
    if weight_on not in WEIGHT_ON:
        raise ValueError(f"weight_on: {weight_on!r} is unknown; known: {', '.join(WEIGHT_ON)}")
    if ids_TK.shape != weights_TK.shape or ids_TK.shape[0] != x_TH.shape[0]:
        shapes = f"ids {tuple(ids_TK.shape)}, weights {tuple(weights_TK.shape)}, x {tuple(x_TH.shape)}"
        raise ValueError(f"{shapes}: want [T, K], [T, K] and [T, H]")
    shared_TH = None if shared is None else shared_expert(x_TH, shared, backend=backend)
    if experts.backend_on(x_TH.device, backend) == "triton":
        from kernels.fused import fused_layer

        return fused_layer(x_TH, ids_TK, weights_TK, experts, weight_on=weight_on, shared_TH=shared_TH)
    perm = sort_by_expert(ids_TK, experts.num_experts)
    rows_MH = gather_rows(x_TH, perm, ids_TK.shape[1])
    if weight_on == "input":
        rows_MH = (rows_MH.float() * weights_TK.reshape(-1)[perm.order, None].float()).to(x_TH.dtype)
        weights_TK = torch.ones_like(weights_TK, dtype=torch.float32)
    rows_MH = expert_mlp(rows_MH, perm.offsets, experts, backend=backend)
    y_TH = combine_rows(rows_MH, perm, weights_TK, out_dtype=torch.float32, backend=backend)
    if shared_TH is not None:
        y_TH = y_TH + shared_TH
    return y_TH.to(x_TH.dtype)


def shared_expert(x_TH: Tensor, shared: ExpertWeights, *, backend: str = "auto") -> Tensor:
    """BF16 [T, H]: the expert that every token visits; ``shared`` holds one expert."""
    if shared.num_experts != 1:
        raise ValueError(f"shared: {shared.num_experts} experts; join them into one of their summed width")
    offsets = torch.arange(2, device=x_TH.device) * x_TH.shape[0]
    return expert_mlp(x_TH, offsets, shared, backend=backend)


def math_path(
    precision: str | Recipe, *, device_type: str, capability: tuple[int, int] | None = None, backend: str = "auto"
) -> str:
    """How the products are formed: ``native``, ``upcast`` (stored small, multiplied wide), or ``emulated``.

    Emulated: both sides are quantised, decoded again and multiplied wide, which shows the format's error but not its
    speed. Where the fused kernels run it is read from their compiled code (``compile.compiled_math_path``). Raises
    ValueError where the backend cannot run the precision.
    """
    recipe = find_recipe(precision)
    chosen = choose_layer_backend(
        backend, recipe.weights, recipe.activations, device_type=device_type, capability=capability
    )
    if chosen == "triton" and device_type == "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        from kernels.compile import compiled_math_path

        return compiled_math_path(recipe.weights, recipe.activations, tuple(capability))
    if recipe.activations == "bf16":
        return "native" if recipe.weights == "bf16" else "upcast"
    return "emulated"


def _check_weights(w13: Tensor, w2: Tensor, bias13: Tensor | None, bias2: Tensor | None) -> None:
    if w13.dim() != 3 or w2.dim() != 3:
        raise ValueError(f"weights: shapes {tuple(w13.shape)} and {tuple(w2.shape)}; want [E, 2I, H] and [E, H, I]")
    num_experts, hidden, width = w2.shape
    if w13.shape != (num_experts, 2 * width, hidden):
        wanted = (num_experts, 2 * width, hidden)
        raise ValueError(f"weights: w13 {tuple(w13.shape)} does not fit w2 {tuple(w2.shape)}; want {wanted}")
    for name, bias, columns in (("bias13", bias13, 2 * width), ("bias2", bias2, hidden)):
        if bias is not None and bias.shape != (num_experts, columns):
            raise ValueError(f"{name}: shape {tuple(bias.shape)}; want [{num_experts}, {columns}]")
