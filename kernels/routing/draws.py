"""Random numbers that are a function of a seed and a place: the same on every device, made without waiting for it."""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = (0x45D9F3B, 0x7FEB352D, 0x45D9F3B)  # below 2^31, so that a product with 32 bits fits int64


def mix(values: Tensor, salt: int = 0) -> Tensor:
    """32 mixed bits, as int64, of int64 values: multiply and xor-shift, three rounds over each half.

    >>> mix(torch.tensor([0, 1])).unique().numel()
    2
    """
    high = _scramble((values >> 32) & _MASK ^ (salt & _MASK))
    return _scramble((values & _MASK) ^ high ^ ((salt >> 32) & _MASK))


def uniform_bits(rows: int, columns: int, *, seed: int, device: torch.device | str, first_row: int = 0) -> Tensor:
    """24 random bits as float32 [rows, columns], of ``first_row`` and those behind it."""
    start = first_row * columns
    place = torch.arange(start, start + rows * columns, device=device).view(rows, columns)
    return (mix(place + 1, salt=seed) >> 8).float()


def normal(rows: int, columns: int, *, seed: int, device: torch.device | str) -> Tensor:
    """Standard normal float32 [rows, columns], by the inverse of its distribution; devices agree to rounding."""
    middle = (uniform_bits(rows, columns, seed=seed, device=device) - 8388607.5) * 2.0**-23  # exact, inside (-1, 1)
    return middle.erfinv() * 2.0**0.5


def _scramble(bits: Tensor) -> Tensor:
    for factor in _ROUNDS:
        bits = (bits ^ (bits >> 16)) * factor & _MASK
    return bits ^ (bits >> 16)
