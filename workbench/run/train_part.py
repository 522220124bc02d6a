"""The part of a training step that travels: some tokens of a rank to the experts and back, forward, then backward.

T tokens of the part, K top-k, H hidden, B rows of the buffer after dispatch, C (slot, weight) columns of a buffer row,
M pairs computed here. ``combine.backward`` is a dispatch of gradients, ``dispatch.backward`` a combine of them, and a
GEMM has a ``dgrad`` and a ``wgrad``.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.backend import gemm_backend_on
from kernels.backward.activation import activate, activation_backward
from kernels.backward.experts import ExpertGrads, TrainExperts
from kernels.backward.products import (
    Operand,
    TrainMatrix,
    bias_grad,
    dgrad,
    encode_gradients,
    encode_inputs,
    multiply,
    wgrad,
)
from kernels.backward.rows import combine_backward, gather_backward, scale_backward
from kernels.permute import combine_rows, gather_rows, sort_by_expert
from workbench.comm import gradients
from workbench.comm.gradients import by_choice
from workbench.run.layer import Stage
from workbench.run.train_layer import TrainChunk, TrainLayer


class TrainPart:
    """Once its stages have run, ``x_TH`` and ``weight_grads_TK`` are the float32 gradients of its tokens and of their
    combine weights, and ``grads`` those of the experts from its tokens alone. ``experts`` gives the encoded weights."""

    def __init__(self, step: TrainLayer, chunk: TrainChunk, *, experts: Callable[[], TrainExperts]):
        self.step, self.chunk, self._experts_now = step, chunk, experts
        self._upstream_TH = step.upstream_TH[chunk.rows]
        self._how = {"recipe": step.recipe, "backend": step.layer.backend}
        device, recipe = step.layer.x_TH.device, step.recipe
        chosen = gemm_backend_on(device, step.layer.backend, recipe.weights, recipe.activations)
        self._keep_dropped = chosen == "triton" and device.type == "cuda"
        self.x_TH: Tensor
        self.weight_grads_TK: Tensor
        self.grads: ExpertGrads

    def forward_stages(self) -> list[Stage]:
        """From the tokens to the sums of their experts, which the exchange holds."""
        exchange, x_TH = self.chunk.exchange, self.step.layer.x_TH[self.chunk.rows]
        return [
            *exchange.dispatch_stages(lambda: x_TH),
            ("permute", self._permute),
            *self._encoding("quantise", self._encode_input),
            ("gemm1", self._gemm1),
            ("activation", self._activate),
            *self._encoding("quantise", self._encode_middle),
            ("gemm2", self._gemm2),
            ("unpermute", self._unpermute),
            *exchange.combine_stages(lambda: self._summed_BH),
        ]

    def backward_stages(self) -> list[Stage]:
        """From the gradient of the output to those of the tokens, their weights and the experts."""
        travels = self.chunk.plan is not None
        return [
            *([("combine.backward", self._combine_backward)] if travels else []),
            ("unpermute.backward", self._unpermute_backward),
            *self._encoding("quantise.backward", self._encode_outer),
            ("gemm2.dgrad", self._gemm2_dgrad),
            ("gemm2.wgrad", self._gemm2_wgrad),
            ("activation.backward", self._activation_backward),
            *self._encoding("quantise.backward", self._encode_inner),
            ("gemm1.dgrad", self._gemm1_dgrad),
            ("gemm1.wgrad", self._gemm1_wgrad),
            ("permute.backward", self._permute_backward),
            *([("dispatch.backward", self._dispatch_backward)] if travels else []),
        ]

    def _encoding(self, name: str, stage: Callable[[], None]) -> list[Stage]:
        """A stage where something is encoded; in bf16 nothing is, and the stage before hands its rows on."""
        return [(name, stage)] if self.step.encodes else []

    def _permute(self) -> None:
        self._experts = self._experts_now()
        self._buffer_BH, self._ids_BC, self._weights_BC = self.chunk.exchange.received()
        self._perm = sort_by_expert(self._ids_BC, self.step.layer.num_slots, keep_dropped=self._keep_dropped)
        self._rows_MH = gather_rows(self._buffer_BH, self._perm, self._ids_BC.shape[1])
        self._scale_BC = self._weights_BC
        if self.step.layer.weight_on == "input":
            scale_M1 = self._weights_BC.reshape(-1)[self._perm.order, None].float()
            self._unscaled_MH, self._rows_MH = self._rows_MH, (self._rows_MH.float() * scale_M1).to(torch.bfloat16)
            self._scale_BC = torch.ones_like(self._weights_BC)
        if not self.step.encodes:
            self._encode_input()

    def _encode_input(self) -> None:
        self._inputs = encode_inputs(self._rows_MH, self._experts.w13, scaling=self.step.scaling, **self._how)

    def _gemm1(self) -> None:
        bias, offsets = self._experts.bias13, self._perm.offsets
        self._h_M2I = multiply(self._inputs, offsets, self._experts.w13, bias_EN=bias, **self._how)

    def _activate(self) -> None:
        self._a_MI = activate(self._h_M2I, self.step.activation, backend=self.step.layer.backend)
        if not self.step.encodes:
            self._encode_middle()

    def _encode_middle(self) -> None:
        self._middle = encode_inputs(self._a_MI, self._experts.w2, scaling=self.step.scaling, **self._how)

    def _gemm2(self) -> None:
        bias, offsets = self._experts.bias2, self._perm.offsets
        self._out_MH = multiply(self._middle, offsets, self._experts.w2, bias_EN=bias, **self._how)

    def _unpermute(self) -> None:
        self._summed_BH = combine_rows(self._out_MH, self._perm, self._scale_BC, backend=self.step.layer.backend)

    def _combine_backward(self) -> None:
        self._grads_BH = gradients.combine_backward(self.chunk.plan, self.step.transport, self._upstream_TH)

    def _unpermute_backward(self) -> None:
        grads_BH = self._upstream_TH if self.chunk.plan is None else self._grads_BH
        self._outer_MH, self._weight_grads_BC = combine_backward(grads_BH, self._out_MH, self._perm, self._scale_BC)
        if not self.step.encodes:
            self._encode_outer()

    def _encode_outer(self) -> None:
        self._outer = self._encoded(self._outer_MH, self._experts.w2)

    def _gemm2_dgrad(self) -> None:
        self._grads_MI = dgrad(self._outer, self._perm.offsets, self._experts.w2, **self._how)

    def _gemm2_wgrad(self) -> None:
        self._w2 = wgrad(self._outer, self._middle, self._perm.offsets, **self._how)
        self._bias2 = self._bias_grad(self._outer_MH, self._experts.bias2)

    def _activation_backward(self) -> None:
        self._inner_M2I = activation_backward(self._grads_MI, self._h_M2I, self.step.activation)
        if not self.step.encodes:
            self._encode_inner()

    def _encode_inner(self) -> None:
        self._inner = self._encoded(self._inner_M2I, self._experts.w13)

    def _gemm1_dgrad(self) -> None:
        self._grads_MH = dgrad(self._inner, self._perm.offsets, self._experts.w13, **self._how)

    def _gemm1_wgrad(self) -> None:
        w13 = wgrad(self._inner, self._inputs, self._perm.offsets, **self._how)
        bias13 = self._bias_grad(self._inner_M2I, self._experts.bias13)
        self.grads = ExpertGrads(self._grads_MH, w13, self._w2, bias13, self._bias2)

    def _encoded(self, grads: Tensor, weights: TrainMatrix) -> Operand:
        return encode_gradients(grads, weights, recipe=self.step.recipe, scaling=self.step.scaling)

    def _bias_grad(self, grads: Tensor, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else bias_grad(grads, self._perm.offsets, backend=self.step.layer.backend)

    def _permute_backward(self) -> None:
        grads_MH = self._grads_MH
        if self.step.layer.weight_on == "input":
            grads_MH, self._weight_grads_BC = scale_backward(grads_MH, self._unscaled_MH, self._perm, self._weights_BC)
        shape = tuple(self._ids_BC.shape)
        self._grads_BH = gather_backward(grads_MH, self._perm, shape=shape, backend=self.step.layer.backend)
        self._weight_grads_BK = by_choice(self._weight_grads_BC, self.chunk.choices_BC, top_k=self.step.top_k)
        self.x_TH, self.weight_grads_TK = self._grads_BH, self._weight_grads_BK

    def _dispatch_backward(self) -> None:
        self.x_TH, self.weight_grads_TK = gradients.dispatch_backward(
            self.chunk.plan, self.step.transport, self._grads_BH, self._weight_grads_BK
        )
