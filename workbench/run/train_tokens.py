"""The part of a training step that stays at home: the gate and the shared expert of some tokens, forward and backward.

T tokens, K top-k, H hidden, E experts.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.backward import router_weights
from kernels.backward.experts import ExpertGrads, TrainExperts, experts_backward, experts_forward
from workbench.run.layer import Stage
from workbench.run.train_layer import TrainLayer


class TrainTokens:
    """Once its stages have run, ``shared_TH`` is the shared expert's output (None without one), ``gate_HE`` and
    ``gate_x_TH`` the gradients that go through the gate (None without one), ``shared_grads`` the shared expert's.

    ``shared`` gives its encoded weights, ``weight_grads`` the gradients [T, K] of the tokens' combine weights.
    """

    def __init__(
        self, step: TrainLayer, rows: slice, *, shared: Callable[[], TrainExperts], weight_grads: Callable[[], Tensor]
    ):
        layer = step.layer
        self.step, self._shared_now, self._weight_grads_now = step, shared, weight_grads
        self._x_TH, self._logits_TE = layer.x_TH[rows], layer.logits_TE[rows]
        self._upstream_TH = step.upstream_TH[rows]
        self.shared_TH: Tensor | None = None
        self.shared_grads: ExpertGrads | None = None
        self.gate_HE: Tensor | None = None
        self.gate_x_TH: Tensor | None = None

    def gate_stages(self) -> list[Stage]:
        return [("gate", self._gate)]

    def gate_backward_stages(self) -> list[Stage]:
        return [("gate.backward", self._gate_backward)]

    def shared_stages(self) -> list[Stage]:
        return [] if self.step.shared_weights is None else [("shared_expert", self._shared_forward)]

    def shared_backward_stages(self) -> list[Stage]:
        return [] if self.step.shared_weights is None else [("shared_expert.backward", self._shared_backward)]

    def _gate(self) -> None:
        # As in a measured layer the product is the gate's cost, and the traffic's logits decide.
        for weight in self.step.layer.gate:
            torch.mm(self._x_TH, weight)
        assert self.step.layer.route is not None
        self._ids_TK = self.step.layer.route(self._logits_TE).ids

    def _shared_forward(self) -> None:
        offsets = torch.arange(2, device=self._x_TH.device) * self._x_TH.shape[0]
        self.shared_TH, self._shared_saved = experts_forward(
            self._x_TH, offsets, self._shared_now(), backend=self.step.layer.backend
        )

    def _shared_backward(self) -> None:
        self.shared_grads = experts_backward(
            self._upstream_TH, self._shared_saved, self._shared_now(), backend=self.step.layer.backend
        )

    def _gate_backward(self) -> None:
        """The logits count as the gate's product, so their gradient goes to its matrix and to the tokens."""
        if not self.step.layer.gate:
            return
        logits_TE = self._logits_TE.detach().requires_grad_()
        with torch.enable_grad():
            weights_TK = router_weights(logits_TE, self._ids_TK, **self.step.router)
        (grads_TE,) = torch.autograd.grad(weights_TK, logits_TE, self._weight_grads_now().to(weights_TK.dtype))
        self.gate_HE = self._x_TH.float().T @ grads_TE
        self.gate_x_TH = grads_TE @ self.step.layer.gate[0].float().T
