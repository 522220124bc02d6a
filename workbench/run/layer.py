"""One rank's MoE layer as a list of timed stages.

T tokens of the rank, K top-k, H hidden, B rows of the buffer after dispatch, C (slot, weight) columns of a buffer row,
S local slots, M pairs computed here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import adapters
from kernels.activation import apply_activation
from kernels.grouped_gemm import grouped_gemm, quantise_rows
from kernels.moe import ExpertWeights, shared_expert
from kernels.permute import Permutation, combine_rows, gather_rows, sort_by_expert
from kernels.routing import Routing
from workbench.run.exchange import Exchange

Stage = tuple[str, Callable[[], None]]


@dataclass(frozen=True)
class RankLayer:
    """All that a rank needs before the clock starts. ``route`` is None where the scope leaves the gate out, and
    ``gate`` holds the matrices in front of it.

    ``adds_shared`` is False for a part of a group, whose output rows are not this rank's tokens. A ``peer`` does all
    expert stages in one call; ``experts`` then says their sizes alone.
    """

    x_TH: Tensor
    logits_TE: Tensor
    gate: tuple[Tensor, ...]
    route: Callable[[Tensor], Routing] | None
    exchange: Exchange
    experts: ExpertWeights
    shared: ExpertWeights | None
    adds_shared: bool
    weight_on: str
    backend: str
    peer: adapters.Layer | None = None

    @property
    def num_slots(self) -> int:
        return self.experts.num_experts


class LayerRun:
    """One pass over the stages; each leaves its result for the next, and ``y_TH`` holds the last."""

    def __init__(self, layer: RankLayer):
        self.layer = layer
        self.routing: Routing | None = None
        self.y_TH = self.shared_TH = layer.x_TH
        self._fused = None
        if layer.peer is None and layer.experts.backend_on(layer.x_TH.device, layer.backend) == "triton":
            from workbench.run.fused_layer import FusedExperts

            self._fused = FusedExperts(layer.experts, layer.exchange.received, weight_on=layer.weight_on)
        self._buffer_BH: Tensor
        self._ids_BC: Tensor
        self._weights_BC: Tensor
        self._perm: Permutation

    def stages(self) -> list[Stage]:
        """Stages in the order of execution; names repeat where a kind of work comes up again."""
        return [*self.gate_stages(), *self.routed_stages(), *self.shared_stages(), ("finish", self._finish)]

    def traced_stages(self) -> list[Stage]:
        """What a profile shows."""
        return self.stages()

    def gate_stages(self) -> list[Stage]:
        """The gate, where the scope has one."""
        return [] if self.layer.route is None else [("gate", self._gate)]

    def routed_stages(self) -> list[Stage]:
        """From the tokens through the routed experts and back."""
        layer = self.layer
        steps = layer.exchange.dispatch_stages(lambda: layer.x_TH)
        steps += self._expert_stages() if layer.peer is None else [("experts", self._call_peer)]
        return steps + layer.exchange.combine_stages(self._sums)

    def shared_stages(self) -> list[Stage]:
        """The shared expert, where there is one."""
        return [] if self.layer.shared is None else [("shared_expert", self._shared_expert)]

    def _expert_stages(self) -> list[Stage]:
        if self._fused is not None:
            return self._fused.stages()
        steps: list[Stage] = [("permute", self._permute)]
        if self.layer.experts.recipe.activations != "bf16":
            steps += [("quantise", self._quantise_input)]
        steps += [("gemm1", self._gemm1), ("activation", self._activate)]
        if self.layer.experts.recipe.activations != "bf16":
            steps += [("quantise", self._quantise_middle)]
        steps += [("gemm2", self._gemm2), ("unpermute", self._unpermute)]
        return steps

    def __call__(self) -> None:
        for _, stage in self.stages():
            stage()

    def _gate(self) -> None:
        # The products are the gate's cost; the traffic's logits decide, so that every router meets the same ones.
        features = self.layer.x_TH
        for weight in self.layer.gate:
            features = torch.mm(features, weight)
        assert self.layer.route is not None
        self.routing = self.layer.route(self.layer.logits_TE)

    def _call_peer(self) -> None:
        assert self.layer.peer is not None
        self._buffer_BH = self.layer.peer(*self.layer.exchange.received())

    def _permute(self) -> None:
        self._buffer_BH, self._ids_BC, self._weights_BC = self.layer.exchange.received()
        self._perm = sort_by_expert(self._ids_BC, self.layer.num_slots)
        self._rows = gather_rows(self._buffer_BH, self._perm, self._ids_BC.shape[1])
        if self.layer.weight_on == "input":
            scale_M1 = self._weights_BC.reshape(-1)[self._perm.order, None].float()
            self._rows = (self._rows.float() * scale_M1).to(self._buffer_BH.dtype)
            self._weights_BC = torch.ones_like(self._weights_BC)

    def _quantise_input(self) -> None:
        self._rows = quantise_rows(
            self._rows,
            self.layer.experts.recipe.activations,
            weights=self.layer.experts.w13,
            backend=self.layer.backend,
        )

    def _gemm1(self) -> None:
        experts = self.layer.experts
        self._rows = self._multiply(self._rows, experts.w13, experts.bias13)

    def _activate(self) -> None:
        self._rows = apply_activation(self._rows, self.layer.experts.activation, backend=self.layer.backend)

    def _quantise_middle(self) -> None:
        self._rows = quantise_rows(
            self._rows, self.layer.experts.recipe.activations, weights=self.layer.experts.w2, backend=self.layer.backend
        )

    def _gemm2(self) -> None:
        experts = self.layer.experts
        self._rows = self._multiply(self._rows, experts.w2, experts.bias2)

    def _multiply(self, rows, weights, bias) -> Tensor:
        return grouped_gemm(
            rows,
            self._perm.offsets,
            weights,
            activations_format=self.layer.experts.recipe.activations,
            bias_EN=bias,
            backend=self.layer.backend,
        )

    def _unpermute(self) -> None:
        self._buffer_BH = combine_rows(self._rows, self._perm, self._weights_BC, backend=self.layer.backend)

    def _sums(self) -> Tensor:
        return self._buffer_BH if self._fused is None else self._fused.rows_BH

    def _shared_expert(self) -> None:
        assert self.layer.shared is not None
        self.shared_TH = shared_expert(self.layer.x_TH, self.layer.shared, backend=self.layer.backend)

    def _finish(self) -> None:
        y_TH = self.layer.exchange.combined()
        self.y_TH = y_TH + self.shared_TH if self.layer.adds_shared else y_TH
