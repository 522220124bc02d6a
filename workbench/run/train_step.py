"""One rank's training step of a layer as a list of timed stages: forward, then backward.

T tokens of the rank, K top-k, H hidden. Backward stages are named after their forward stage. Where the tokens travel in
chunks, forward and backward are a pipeline each, and gradients of weights are summed over the chunks in their order.
Two micro-batches have gates and shared experts of their own; chunks share one gate and one shared expert.

The step encodes the master weights, as each step after an optimizer's must. Weight gradients stay on their rank: what
data parallelism adds up afterwards is not part of the layer.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.backward.experts import ExpertGrads, TrainExperts, prepare_experts
from workbench.run.inputs import RawWeights
from workbench.run.layer import Stage
from workbench.run.overlap import Lane, in_turn, overlapped, run_stages
from workbench.run.train_layer import Gradients, TrainLayer
from workbench.run.train_part import TrainPart
from workbench.run.train_tokens import TrainTokens


class TrainRun:
    """One pass over the stages; ``y_TH`` and ``grads`` hold the last results."""

    def __init__(self, step: TrainLayer):
        self.step, self.layer = step, step.layer
        self.y_TH = self.shared_TH = step.layer.x_TH
        self.grads = Gradients()
        self._parts = [TrainPart(step, chunk, experts=lambda: self._experts) for chunk in step.chunks]
        groups = [[part] for part in self._parts] if step.two_batch else [self._parts]
        self._tokens = [self._home(group) for group in groups]
        self._lane = Lane(step.layer.x_TH.device) if step.overlaps else None
        self._experts: TrainExperts
        self._shared: TrainExperts
        if not step.encodes:
            self._encode_weights()

    def __call__(self) -> None:
        if self._lane is None:
            run_stages(self.stages())
            return
        for stages, parts, beside in self._passes():
            run_stages(stages)
            overlapped(parts, self._lane, beside=beside)
        run_stages(self._last())

    def stages(self) -> list[Stage]:
        """Stages in the order of execution, none beside another; names repeat where a kind of work comes up again."""
        steps: list[Stage] = []
        for stages, parts, beside in self._passes():
            steps += [*stages, *in_turn(parts, beside=beside)]
        return [*steps, *self._last()]

    def traced_stages(self) -> list[Stage]:
        """What a profile shows: a pipeline as one stage, with those of its parts inside."""
        if self._lane is None:
            return self.stages()
        steps: list[Stage] = []
        for name, (stages, parts, beside) in zip(("pipeline", "pipeline.backward"), self._passes(), strict=True):
            pipeline = partial(overlapped, parts, self._lane, beside=beside, spans=True)
            steps += [*stages, (name, pipeline)]
        return [*steps, *self._last()]

    def _home(self, parts: list[TrainPart]) -> TrainTokens:
        """The gate and the shared expert of the tokens of some parts."""
        rows = slice(parts[0].chunk.rows.start, parts[-1].chunk.rows.stop)
        return TrainTokens(
            self.step, rows, shared=lambda: self._shared,
            weight_grads=lambda: _joined([part.weight_grads_TK for part in parts]),
        )  # fmt: skip

    def _passes(self) -> list[tuple[list[Stage], list[list[Stage]], list[Stage]]]:
        """Forward and backward: stages before the parts, the stages of each part, stages while they travel."""
        forward = [part.forward_stages() for part in self._parts]
        backward = [part.backward_stages() for part in self._parts]
        before: list[Stage] = [("quantise", self._encode_weights)] if self.step.encodes else []
        between: list[Stage] = []
        beside = self._beside()
        if self.step.two_batch:
            for number, home in enumerate(self._tokens):
                forward[number] = [*home.gate_stages(), *forward[number], *self._late(home.shared_stages())]
                backward[number] += [*self._late(home.shared_backward_stages()), *home.gate_backward_stages()]
        else:
            (home,) = self._tokens
            before += home.gate_stages()
            between += self._late(home.shared_stages())
        return [(before, forward, beside[0]), ([*between, ("finish", self._finish)], backward, beside[1])]

    def _last(self) -> list[Stage]:
        """Stages after the backward's parts."""
        late: list[Stage] = []
        if not self.step.two_batch:
            (home,) = self._tokens
            late += [*self._late(home.shared_backward_stages()), *home.gate_backward_stages()]
        return [*late, ("finish.backward", self._finish_backward)]

    def _beside(self) -> tuple[list[Stage], list[Stage]]:
        """The shared experts, forward and backward, where they are computed while tokens travel."""
        if not self.step.shared_beside:
            return [], []
        homes = self._tokens
        return _flat(h.shared_stages() for h in homes), _flat(h.shared_backward_stages() for h in homes)

    def _late(self, shared: list[Stage]) -> list[Stage]:
        """The shared expert where it waits until the tokens are back."""
        return [] if self.step.shared_beside else shared

    def _encode_weights(self) -> None:
        self._experts = self._prepared(self.step.weights, "experts")
        if self.step.shared_weights is not None:
            self._shared = self._prepared(self.step.shared_weights, "shared")

    def _prepared(self, raw: RawWeights, label: str) -> TrainExperts:
        return prepare_experts(
            raw.w13, raw.w2, bias13=raw.bias13, bias2=raw.bias2, activation=self.step.activation,
            recipe=self.step.recipe, scaling=self.step.scaling, label=label,
        )  # fmt: skip

    def _finish(self) -> None:
        y_TH, shared = self.layer.exchange.combined(), [home.shared_TH for home in self._tokens]
        if self.step.shared_weights is None:
            self.y_TH = y_TH
            return
        self.shared_TH = _joined(shared)
        self.y_TH = y_TH + self.shared_TH

    def _finish_backward(self) -> None:
        x_TH = _joined([part.x_TH for part in self._parts])
        self.grads.experts = _summed([part.grads for part in self._parts])
        if self.layer.gate:
            x_TH = x_TH + _joined([home.gate_x_TH for home in self._tokens])
            first, *others = (home.gate_HE for home in self._tokens)
            self.grads.gate_HE = sum(others, start=first)
        if self.step.shared_weights is not None:
            self.grads.shared = _summed([home.shared_grads for home in self._tokens])
            x_TH = x_TH + self.grads.shared.rows.float()
        self.grads.x_TH = x_TH.to(torch.bfloat16)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _summed(grads: Sequence[ExpertGrads]) -> ExpertGrads:
    """Gradients of the weights over all parts, added in their order; the rows of all parts."""
    if len(grads) == 1:
        return grads[0]
    sums = {}
    for name in ("w13", "w2", "bias13", "bias2"):
        first, *others = (getattr(part, name) for part in grads)
        sums[name] = None if first is None else sum(others, start=first)
    return ExpertGrads(torch.cat([part.rows for part in grads]), **sums)


def _flat(lists: Iterable[list[Stage]]) -> list[Stage]:
    return [stage for stages in lists for stage in stages]
