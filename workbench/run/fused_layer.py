"""The expert stages of a rank on a GPU, in the few launches that the measured total consists of.

``permute`` finds the order and the row blocks, ``gemm1`` gathers, multiplies and activates, ``gemm2`` multiplies and
weighs, ``unpermute`` sums a token's rows. B rows of the buffer after dispatch, C (slot, weight) columns of a row.
"""

from collections.abc import Callable

from torch import Tensor

from kernels.fused import (
    combine_fused,
    fused_gemm1,
    fused_gemm2,
    plan_fused,
    quantise_middle,
    quantise_tokens,
)
from kernels.moe import ExpertWeights

Stage = tuple[str, Callable[[], None]]


class FusedExperts:
    """One pass over the expert stages; ``received`` gives rows, slots and weights, and ``rows_BH`` holds the sums."""

    def __init__(
        self, experts: ExpertWeights, received: Callable[[], tuple[Tensor, Tensor, Tensor]], *, weight_on: str
    ):
        self._experts, self._received, self._on_input = experts, received, weight_on == "input"
        self.rows_BH: Tensor

    def stages(self) -> list[Stage]:
        """Stages in the order of execution."""
        encodes = self._experts.recipe.activations != "bf16"
        steps: list[Stage] = [("permute", self._plan_rows)]
        steps += [("quantise", self._quantise_tokens)] if encodes else []
        steps += [("gemm1", self._gemm1)]
        steps += [("quantise", self._quantise_middle)] if encodes else []
        return [*steps, ("gemm2", self._gemm2), ("unpermute", self._combine)]

    def _plan_rows(self) -> None:
        self._rows, self._ids_BC, self._weights_BC = self._received()
        self._plan = plan_fused(self._ids_BC, self._experts)

    def _quantise_tokens(self) -> None:
        self._rows = quantise_tokens(self._rows, self._experts)

    def _gemm1(self) -> None:
        weights = self._weights_BC if self._on_input else None
        self._rows = fused_gemm1(self._rows, self._plan, self._experts, weights_TK=weights)

    def _quantise_middle(self) -> None:
        self._rows = quantise_middle(self._rows, self._experts)

    def _gemm2(self) -> None:
        weights = None if self._on_input else self._weights_BC
        self._rows = fused_gemm2(self._rows, self._plan, self._experts, weights_TK=weights)

    def _combine(self) -> None:
        self.rows_BH = combine_fused(self._rows, self._ids_BC)
