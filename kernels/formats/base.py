"""What every number format shares: the quantised tensor, the format's table entry, and input checks.

Shapes: a matrix is [N, K] (weights) or [M, K] (activations); K is the reduced dimension and scales run along it.
Leading dimensions (experts) hold independent matrices: no scale is shared between them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from kernels.backend import row_backend_on

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OVERFLOWS = ("saturate", "nan")
MAX_PART_ELEMENTS = 1 << 26
"""Stacked matrices are encoded and decoded in parts of about this size, to bound the float32 temporaries."""
MAX_PART_ELEMENTS_CPU = 1 << 20
"""On a CPU smaller ones, whose temporaries stay in cache and in memory that is mapped already: three times as fast."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """A tensor stored in a number format.

    ``shape`` is the shape before encoding. ``data`` holds bf16 values, uint8 codes (FP8), or uint8 pairs of E2M1
    codes (see ``elements.pack_nibbles``), tails included, padding not. ``scale`` holds float32 multipliers (FP8),
    E8M0 bytes (MX) or E4M3 codes (NVFP4). ``global_scale`` is NVFP4's float32 divisor, one a matrix.
    """

    format: str
    shape: tuple[int, ...]
    data: Tensor
    scale: Tensor | None
    global_scale: Tensor | None
    scale_rule: str
    overflow: str

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and of every scale."""
        return sum(part.numel() * part.element_size() for part in self._parts() if part is not None)

    def to(self, device: torch.device | str) -> "Quantised":
        """The same values on another device."""
        return self._map(lambda part: part.to(device))

    def expert(self, index: int) -> "Quantised":
        """One matrix of a stack: [E, N, K] -> [N, K]. Views, no copy."""
        if len(self.shape) < 3:
            raise ValueError(f"expert() needs a stack [E, N, K], got shape {self.shape}")
        return replace(self._map(lambda part: part[index]), shape=self.shape[1:])

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self.data, self.scale, self.global_scale

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Quantised":
        data, scale, global_scale = (None if part is None else change(part) for part in self._parts())
        return replace(self, data=data, scale=scale, global_scale=global_scale)


class Encode(Protocol):
    def __call__(self, x: Tensor, *, weights: bool = ..., scale_rule: str = ..., overflow: str = ...) -> Quantised: ...


class Decode(Protocol):
    def __call__(self, q: Quantised, dtype: torch.dtype = ...) -> Tensor: ...


@dataclass(frozen=True)
class Format:
    """A number format: how to encode [..., N, K], how to decode, and what error to expect.

    ``tolerance`` is the relative RMS error allowed for encode-decode of standard normal float32 data.
    ``scale_rules`` lists the rules ``encode`` takes; the first is its default.
    """

    name: str
    encode: Encode
    decode: Decode
    tolerance: float
    element_bits: int
    scale_rules: tuple[str, ...] = ("none",)


def check_request(x: Tensor, name: str, *, scale_rule: str, scale_rules: tuple[str, ...], overflow: str) -> None:
    """Raise ValueError, naming the argument, for what ``name`` cannot encode.

    float64 is refused: going through float32 would round twice.
    """
    if x.dim() < 2 or not x.shape[-1]:
        raise ValueError(f"{name}: needs a matrix [..., N, K] with K > 0, got shape {tuple(x.shape)}")
    if x.dtype not in INPUT_DTYPES:
        raise ValueError(f"{name}: dtype must be bfloat16, float16 or float32, got {x.dtype}")
    if scale_rule not in scale_rules:
        raise ValueError(f"{name}: scale_rule {scale_rule!r} is not one of {', '.join(scale_rules)}")
    if overflow not in OVERFLOWS:
        raise ValueError(f"{name}: overflow {overflow!r} is not one of {', '.join(OVERFLOWS)}")


def refuse_nan_overflow(name: str, overflow: str) -> None:
    """E2M1 has no NaN and no infinity, so only saturation can be stored."""
    if overflow != "saturate":
        raise ValueError(f"{name}: E2M1 has no NaN, so overflow must be 'saturate', got {overflow!r}")


def fused_on(x: Tensor) -> bool:
    """Whether ``triton_encode`` encodes x; it is imported only then."""
    return x.is_cuda and x.numel() > 0 and row_backend_on(x.device, "auto") == "triton"


def stack_parts(shape: tuple[int, ...], device: torch.device, *, rows_alone: bool = False) -> list[slice]:
    """Slices of the leading dimension of a stack, each of about MAX_PART_ELEMENTS; one slice for a matrix.

    ``rows_alone``: rows share no scale, so that a matrix can be sliced too.
    """
    length, largest = max(shape[0], 1), MAX_PART_ELEMENTS
    if device.type == "cpu":
        largest = min(largest, MAX_PART_ELEMENTS_CPU)
    elements = max(1, torch.Size(shape).numel() // length)
    step = max(1, largest // elements) if len(shape) > 2 or rows_alone else length
    return [slice(start, start + step) for start in range(0, length, step)]


def encode_parts(
    x: Tensor, encode: Callable[[Tensor], tuple[Tensor, ...]], *, rows_alone: bool = False
) -> tuple[Tensor, ...]:
    """Apply ``encode`` to the parts of a stack and join what it returns along the leading dimension."""
    parts = [encode(x[part]) for part in stack_parts(tuple(x.shape), x.device, rows_alone=rows_alone)]
    return parts[0] if len(parts) == 1 else tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def decode_parts(
    q: Quantised,
    decode: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    dtype: torch.dtype,
    *,
    rows_alone: bool = False,
) -> Tensor:
    """Apply ``decode(data, scale, global_scale)`` to parts of a stack, into one tensor of ``q.shape``."""
    parts = stack_parts(q.shape, q.data.device, rows_alone=rows_alone)
    if len(parts) == 1:
        return decode(q.data, q.scale, q.global_scale).to(dtype)
    values = torch.empty(q.shape, dtype=dtype, device=q.data.device)
    for part in parts:
        one_for_all = q.global_scale is None or len(q.shape) == 2
        values[part] = decode(q.data[part], q.scale[part], q.global_scale if one_for_all else q.global_scale[part])
    return values
