"""One rank's training step of a layer as a list of timed stages: forward, then backward.

T tokens of the rank, K top-k, H hidden. Backward stages are named after their forward stage. Where the tokens travel in
chunks, forward and backward are a pipeline each, and the experts' gradients are summed over the chunks in their order.

The step encodes the master weights, as each step after an optimizer's must. Weight gradients stay on their rank: what
data parallelism adds up afterwards is not part of the layer.
"""

from collections.abc import Callable

import torch

from kernels.backward import router_weights
from kernels.backward.experts import ExpertGrads, TrainExperts, experts_backward, experts_forward, prepare_experts
from workbench.run.inputs import RawWeights
from workbench.run.layer import Stage
from workbench.run.overlap import Lane, in_turn, overlapped
from workbench.run.train_layer import Gradients, TrainLayer
from workbench.run.train_part import TrainPart


class TrainRun:
    """One pass over the stages; ``y_TH`` and ``grads`` hold the last results."""

    def __init__(self, step: TrainLayer):
        self.step, self.layer = step, step.layer
        self.y_TH = self.shared_TH = step.layer.x_TH
        self.grads = Gradients()
        self._parts = [TrainPart(step, chunk, experts=lambda: self._experts) for chunk in step.chunks]
        self._lane = Lane(step.layer.x_TH.device) if step.overlaps else None
        self._shared: TrainExperts | None = None
        if not step.encodes:
            self._encode_weights()

    def __call__(self) -> None:
        for stages, parts, beside in self._passes():
            _run(stages)
            if self._lane is not None:
                overlapped(parts, self._lane, beside=beside)
            else:
                _run(in_turn(parts, beside=beside))
        _run(self._last())

    def stages(self) -> list[Stage]:
        """Stages in the order of execution, none beside another; names repeat where a kind of work comes up again."""
        steps: list[Stage] = []
        for stages, parts, beside in self._passes():
            steps += [*stages, *in_turn(parts, beside=beside)]
        return [*steps, *self._last()]

    def _passes(self) -> list[tuple[list[Stage], list[list[Stage]], list[Stage]]]:
        """Forward and backward: stages before the parts, the stages of each part, stages while they travel."""
        forward = [part.forward_stages() for part in self._parts]
        backward = [part.backward_stages() for part in self._parts]
        first = [("quantise", self._encode_weights)] if self.step.encodes else []
        between = [*self._shared_stages("shared_expert", beside=False), ("finish", self._finish)]
        return [
            ([*first, ("gate", self._gate)], forward, self._shared_stages("shared_expert", beside=True)),
            (between, backward, self._shared_stages("shared_expert.backward", beside=True)),
        ]

    def _last(self) -> list[Stage]:
        return [
            *self._shared_stages("shared_expert.backward", beside=False),
            ("gate.backward", self._gate_backward),
            ("finish.backward", self._finish_backward),
        ]

    def _shared_stages(self, name: str, *, beside: bool) -> list[Stage]:
        if self.step.shared_weights is None or beside != self.step.shared_beside:
            return []
        stage: Callable[[], None] = self._shared_backward if name.endswith("backward") else self._shared_forward
        return [(name, stage)]

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

    def _shared_forward(self) -> None:
        assert self._shared is not None
        offsets = torch.arange(2, device=self.layer.x_TH.device) * self.layer.x_TH.shape[0]
        self.shared_TH, self._shared_saved = experts_forward(
            self.layer.x_TH, offsets, self._shared, backend=self.layer.backend
        )

    def _finish(self) -> None:
        y_TH = self.layer.exchange.combined()
        self.y_TH = y_TH if self._shared is None else y_TH + self.shared_TH

    def _shared_backward(self) -> None:
        assert self._shared is not None
        self.grads.shared = experts_backward(
            self.step.upstream_TH, self._shared_saved, self._shared, backend=self.layer.backend
        )

    def _gate_backward(self) -> None:
        """The logits count as the gate's product, so their gradient goes to its matrix and to the tokens."""
        self._x_TH = _joined([part.x_TH for part in self._parts])
        if not self.layer.gate:
            return
        logits_TE = self.layer.logits_TE.detach().requires_grad_()
        with torch.enable_grad():
            weights_TK = router_weights(logits_TE, self._ids_TK, **self.step.router)
        weight_grads_TK = _joined([part.weight_grads_TK for part in self._parts]).to(weights_TK.dtype)
        (grads_TE,) = torch.autograd.grad(weights_TK, logits_TE, weight_grads_TK)
        self.grads.gate_HE = self.layer.x_TH.float().T @ grads_TE
        self._x_TH = self._x_TH + grads_TE @ self.layer.gate[0].float().T

    def _finish_backward(self) -> None:
        self.grads.experts = _summed([part.grads for part in self._parts])
        x_TH = self._x_TH if self.grads.shared is None else self._x_TH + self.grads.shared.rows.float()
        self.grads.x_TH = x_TH.to(torch.bfloat16)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _summed(grads: list[ExpertGrads]) -> ExpertGrads:
    """Gradients of the weights over all parts, added in their order; the rows of all parts."""
    if len(grads) == 1:
        return grads[0]
    names = ("w13", "w2", "bias13", "bias2")
    first = {name: getattr(grads[0], name) for name in names}
    sums = {name: None if value is None else value.clone() for name, value in first.items()}
    for part in grads[1:]:
        for name, total in sums.items():
            if total is not None:
                total += getattr(part, name)
    return ExpertGrads(torch.cat([part.rows for part in grads]), **sums)


def _run(stages: list[Stage]) -> None:
    for _, call in stages:
        call()
