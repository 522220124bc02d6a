"""FP8 scales for training: current (from the tensor itself) and delayed (from its past), with an amax history.

Forward operands are E4M3 and gradients E5M2, whose range is wider and whose precision is lower: gradients vary more
between steps than they need mantissa bits. Delayed scaling spares the pass over the tensor that finds its largest
magnitude before it can be encoded: the scale comes from the steps before, and what lies beyond it saturates.

A history stays on its device and is changed in place, so a step can be captured in a CUDA graph.
Source of the method: Micikevicius et al. 2022, "FP8 formats for deep learning"; the history is that of NVIDIA's
Transformer Engine (its DelayedScaling), with three differences: the first step scales by its own amax instead of by 1,
values that are not finite are passed over, and a step without rows leaves the scale as it is.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.formats import FORMATS, Quantised
from kernels.formats.elements import E4M3, E5M2, to_e4m3, to_e5m2
from kernels.formats.scales import AMAX_FLOOR, true_divide

KINDS = ("current", "delayed")
_CASTS = {"e4m3": (to_e4m3, E4M3.largest), "e5m2": (to_e5m2, E5M2.largest)}


@dataclass(frozen=True, eq=False)
class AmaxHistory:
    """``amaxes`` float32 [steps, ...]: the largest finite magnitudes of the last steps, newest first, 0 = none yet.

    One scale a matrix: a stack of weights [E, N, K] has a history [steps, E].
    """

    amaxes: Tensor

    def record(self, amax: Tensor) -> None:
        """Put ``amax`` [...] first and drop the oldest."""
        self.amaxes.copy_(torch.cat([amax.to(self.amaxes)[None], self.amaxes[:-1]]))

    def scale(self, largest: float, *, otherwise: Tensor) -> Tensor:
        """float32 multiplier [...]: the largest amax of the past over ``largest``; ``otherwise`` where there is none.

        History [2, 8, 0] with largest 4 gives 2; [0, 0, 0] with otherwise 6 gives 1.5.
        """
        past = self.amaxes.amax(0)
        return true_divide(torch.where(past > 0, past, otherwise).clamp(min=AMAX_FLOOR), largest)


def new_history(length: int, *, stack: tuple[int, ...] = (), device: torch.device | str = "cpu") -> AmaxHistory:
    """An empty history of ``length`` steps for a matrix, or for every matrix of a ``stack``."""
    if length < 1:
        raise ValueError(f"amax_history: {length} steps; give at least 1")
    return AmaxHistory(torch.zeros(length, *stack, dtype=torch.float32, device=device))


def amax_of(x: Tensor) -> Tensor:
    """float32 [...]: largest finite magnitude of each matrix of [..., N, K]; 0 for one without elements."""
    if 0 in x.shape[-2:]:
        return x.new_zeros(x.shape[:-2], dtype=torch.float32)
    return x.abs().nan_to_num(nan=0.0, posinf=0.0).amax((-2, -1)).float()


def encode_delayed(x: Tensor, history: AmaxHistory, *, format: str, overflow: str = "saturate") -> Quantised:
    """``x`` [..., N, K] with the scale of the steps before; its own amax then enters the history.

    ``format``: e4m3_tensor or e5m2_tensor. Twice the past's largest magnitude saturates to it, or is NaN (infinity in
    E5M2) with ``overflow`` nan.
    """
    element = format.removesuffix("_tensor")
    if element not in _CASTS:
        raise ValueError(f"scaling: delayed scales a whole tensor in E4M3 or E5M2, not {format}; take current scaling")
    cast, largest = _CASTS[element]
    amax = amax_of(x)
    scale = history.scale(largest, otherwise=amax)
    codes = cast(x.float() / scale[..., None, None], overflow)
    history.record(amax)
    return Quantised(format, tuple(x.shape), codes, scale, None, "none", overflow)


@dataclass(frozen=True, eq=False)
class Scaling:
    """How the operands of a training step get their scales; with ``delayed``, one history for each named operand.

    Keep one for the life of a layer: its histories are the layer's state.
    """

    kind: str = "current"
    length: int = 16
    histories: dict[str, AmaxHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"scaling: {self.kind!r} is unknown; known: {', '.join(KINDS)}")

    def encode(
        self,
        x: Tensor,
        *,
        name: str,
        format: str,
        weights: bool = False,
        scale_rule: str | None = None,
        overflow: str = "saturate",
    ) -> Quantised:
        """``x`` [..., N, K] in ``format``. Call once a step for each ``name``, as the call ends the operand's step.

        ``scale_rule``: None, or a rule that the format does not have, takes the format's own.
        """
        entry = FORMATS[format]
        if self.kind == "delayed" and format != "bf16":
            if name not in self.histories:
                self.histories[name] = new_history(self.length, stack=tuple(x.shape[:-2]), device=x.device)
            return encode_delayed(x, self.histories[name], format=format, overflow=overflow)
        rule = scale_rule if scale_rule in entry.scale_rules else entry.scale_rules[0]
        return entry.encode(x, weights=weights, scale_rule=rule, overflow=overflow)
