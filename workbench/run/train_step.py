"""One rank's training step of a layer as a list of timed stages: forward, then backward.

T tokens of the rank, K top-k, H hidden, B rows of the buffer after dispatch, C (slot, weight) columns of a buffer row,
S local slots, M pairs computed here. Backward stages are named after their forward stage: ``combine.backward`` is a
dispatch of gradients, ``dispatch.backward`` a combine of them, and a GEMM has a ``dgrad`` and a ``wgrad``.

The step encodes the master weights, as each step after an optimizer's must. Weight gradients stay on their rank: what
data parallelism adds up afterwards is not part of the layer.
"""

from collections.abc import Callable

import torch

from kernels.backend import gemm_backend_on
from kernels.backward import router_weights
from kernels.backward.activation import activate, activation_backward
from kernels.backward.experts import ExpertGrads, TrainExperts, experts_backward, experts_forward, prepare_experts
from kernels.backward.products import bias_grad, dgrad, encode_gradients, encode_inputs, multiply, wgrad
from kernels.backward.rows import combine_backward, gather_backward, scale_backward
from kernels.permute import combine_rows, gather_rows, sort_by_expert
from workbench.comm import gradients
from workbench.comm.gradients import by_choice
from workbench.run.inputs import RawWeights
from workbench.run.layer import Stage
from workbench.run.train_layer import Gradients, TrainLayer


class TrainRun:
    """One pass over the stages; ``y_TH`` and ``grads`` hold the last results."""

    def __init__(self, step: TrainLayer):
        self.step, self.layer = step, step.layer
        self.y_TH = self.shared_TH = step.layer.x_TH
        self.grads = Gradients()
        self._how = {"recipe": step.recipe, "backend": step.layer.backend}
        chosen = gemm_backend_on(
            step.layer.x_TH.device, step.layer.backend, step.recipe.weights, step.recipe.activations
        )
        self._keep_dropped = chosen == "triton" and step.layer.x_TH.is_cuda
        self._shared: TrainExperts | None = None
        if not self._encodes:
            self._encode_weights()

    def __call__(self) -> None:
        for _, stage in self.stages():
            stage()

    def stages(self) -> list[Stage]:
        """Stages in the order of execution; names repeat where a kind of work comes up again."""
        return [*self._forward_stages(), *self._backward_stages()]

    def _forward_stages(self) -> list[Stage]:
        exchange = self.layer.exchange
        return [
            *self._encoding("quantise", self._encode_weights),
            ("gate", self._gate),
            *exchange.dispatch_stages(lambda: self.layer.x_TH),
            ("permute", self._permute),
            *self._encoding("quantise", self._encode_input),
            ("gemm1", self._gemm1),
            ("activation", self._activate),
            *self._encoding("quantise", self._encode_middle),
            ("gemm2", self._gemm2),
            ("unpermute", self._unpermute),
            *exchange.combine_stages(lambda: self._summed_BH),
            *([("shared_expert", self._shared_forward)] if self._has_shared else []),
            ("finish", self._finish),
        ]

    def _backward_stages(self) -> list[Stage]:
        travels = self.step.plan is not None
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
            *([("shared_expert.backward", self._shared_backward)] if self._has_shared else []),
            ("gate.backward", self._gate_backward),
            ("finish.backward", self._finish_backward),
        ]

    def _encoding(self, name: str, stage: Callable[[], None]) -> list[Stage]:
        """A stage where something is encoded; in bf16 nothing is, and the stage before hands its rows on."""
        return [(name, stage)] if self._encodes else []

    @property
    def _encodes(self) -> bool:
        recipe = self.step.recipe
        return {recipe.weights, recipe.activations, recipe.gradients} != {"bf16"}

    @property
    def _has_shared(self) -> bool:
        return self.step.shared_weights is not None

    def _encode_weights(self) -> None:
        self._experts = self._prepared(self.step.weights, "experts")
        if self.step.shared_weights is not None:
            self._shared = self._prepared(self.step.shared_weights, "shared")

    def _prepared(self, raw: RawWeights, label: str) -> TrainExperts:
        return prepare_experts(
            raw.w13, raw.w2, bias13=raw.bias13, bias2=raw.bias2, activation=self.step.activation,
            recipe=self.step.recipe, scaling=self.step.scaling, label=label,
        )  # fmt: skip

    def _gate(self) -> None:
        # As in a measured layer the product is the gate's cost, and the traffic's logits decide.
        for weight in self.layer.gate:
            torch.mm(self.layer.x_TH, weight)
        assert self.layer.route is not None
        self._ids_TK = self.layer.route(self.layer.logits_TE).ids

    def _permute(self) -> None:
        self._buffer_BH, self._ids_BC, self._weights_BC = self.layer.exchange.received()
        self._perm = sort_by_expert(self._ids_BC, self.layer.num_slots, keep_dropped=self._keep_dropped)
        self._rows_MH = gather_rows(self._buffer_BH, self._perm, self._ids_BC.shape[1])
        self._scale_BC = self._weights_BC
        if self.layer.weight_on == "input":
            scale_M1 = self._weights_BC.reshape(-1)[self._perm.order, None].float()
            self._unscaled_MH, self._rows_MH = self._rows_MH, (self._rows_MH.float() * scale_M1).to(torch.bfloat16)
            self._scale_BC = torch.ones_like(self._weights_BC)
        if not self._encodes:
            self._encode_input()

    def _encode_input(self) -> None:
        self._inputs = encode_inputs(self._rows_MH, self._experts.w13, scaling=self.step.scaling, **self._how)

    def _gemm1(self) -> None:
        bias, offsets = self._experts.bias13, self._perm.offsets
        self._h_M2I = multiply(self._inputs, offsets, self._experts.w13, bias_EN=bias, **self._how)

    def _activate(self) -> None:
        self._a_MI = activate(self._h_M2I, self.step.activation, backend=self.layer.backend)
        if not self._encodes:
            self._encode_middle()

    def _encode_middle(self) -> None:
        self._middle = encode_inputs(self._a_MI, self._experts.w2, scaling=self.step.scaling, **self._how)

    def _gemm2(self) -> None:
        bias, offsets = self._experts.bias2, self._perm.offsets
        self._out_MH = multiply(self._middle, offsets, self._experts.w2, bias_EN=bias, **self._how)

    def _unpermute(self) -> None:
        self._summed_BH = combine_rows(self._out_MH, self._perm, self._scale_BC, backend=self.layer.backend)

    def _shared_forward(self) -> None:
        assert self._shared is not None
        offsets = torch.arange(2, device=self.layer.x_TH.device) * self.layer.x_TH.shape[0]
        self.shared_TH, self._shared_saved = experts_forward(
            self.layer.x_TH, offsets, self._shared, backend=self.layer.backend
        )

    def _finish(self) -> None:
        y_TH = self.layer.exchange.combined()
        self.y_TH = y_TH if self._shared is None else y_TH + self.shared_TH

    def _combine_backward(self) -> None:
        self._grads_BH = gradients.combine_backward(self.step.plan, self.step.transport, self.step.upstream_TH)

    def _unpermute_backward(self) -> None:
        grads_BH = self.step.upstream_TH if self.step.plan is None else self._grads_BH
        self._outer_MH, self._weight_grads_BC = combine_backward(grads_BH, self._out_MH, self._perm, self._scale_BC)
        if not self._encodes:
            self._encode_outer()

    def _encode_outer(self) -> None:
        self._outer = encode_gradients(
            self._outer_MH, self._experts.w2, recipe=self.step.recipe, scaling=self.step.scaling
        )

    def _gemm2_dgrad(self) -> None:
        self._grads_MI = dgrad(self._outer, self._perm.offsets, self._experts.w2, **self._how)

    def _gemm2_wgrad(self) -> None:
        self._w2 = wgrad(self._outer, self._middle, self._perm.offsets, **self._how)
        self._bias2 = (
            None
            if self._experts.bias2 is None
            else bias_grad(self._outer_MH, self._perm.offsets, backend=self.layer.backend)
        )

    def _activation_backward(self) -> None:
        self._inner_M2I = activation_backward(self._grads_MI, self._h_M2I, self.step.activation)
        if not self._encodes:
            self._encode_inner()

    def _encode_inner(self) -> None:
        self._inner = encode_gradients(
            self._inner_M2I, self._experts.w13, recipe=self.step.recipe, scaling=self.step.scaling
        )

    def _gemm1_dgrad(self) -> None:
        self._grads_MH = dgrad(self._inner, self._perm.offsets, self._experts.w13, **self._how)

    def _gemm1_wgrad(self) -> None:
        w13 = wgrad(self._inner, self._inputs, self._perm.offsets, **self._how)
        bias13 = (
            None
            if self._experts.bias13 is None
            else bias_grad(self._inner_M2I, self._perm.offsets, backend=self.layer.backend)
        )
        self.grads.experts = ExpertGrads(self._grads_MH, w13, self._w2, bias13, self._bias2)

    def _permute_backward(self) -> None:
        grads_MH = self._grads_MH
        if self.layer.weight_on == "input":
            grads_MH, self._weight_grads_BC = scale_backward(grads_MH, self._unscaled_MH, self._perm, self._weights_BC)
        shape = tuple(self._ids_BC.shape)
        self._grads_BH = gather_backward(grads_MH, self._perm, shape=shape, backend=self.layer.backend)
        by_k = by_choice(self._weight_grads_BC, self.step.choices_BC, top_k=self.step.top_k)
        self._x_TH, self._weight_grads_TK = self._grads_BH, by_k

    def _dispatch_backward(self) -> None:
        self._x_TH, self._weight_grads_TK = gradients.dispatch_backward(
            self.step.plan, self.step.transport, self._grads_BH, self._weight_grads_TK
        )

    def _shared_backward(self) -> None:
        assert self._shared is not None
        self.grads.shared = experts_backward(
            self.step.upstream_TH, self._shared_saved, self._shared, backend=self.layer.backend
        )

    def _gate_backward(self) -> None:
        """The logits count as the gate's product, so their gradient goes to its matrix and to the tokens."""
        if not self.layer.gate:
            return
        logits_TE = self.layer.logits_TE.detach().requires_grad_()
        with torch.enable_grad():
            weights_TK = router_weights(logits_TE, self._ids_TK, **self.step.router)
        (grads_TE,) = torch.autograd.grad(weights_TK, logits_TE, self._weight_grads_TK.to(weights_TK.dtype))
        self.grads.gate_HE = self.layer.x_TH.float().T @ grads_TE
        self._x_TH = self._x_TH + grads_TE @ self.layer.gate[0].float().T

    def _finish_backward(self) -> None:
        x_TH = self._x_TH if self.grads.shared is None else self._x_TH + self.grads.shared.rows.float()
        self.grads.x_TH = x_TH.to(torch.bfloat16)
