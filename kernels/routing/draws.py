"""Random numbers that are a function of a seed and a place: the same on every device, made without waiting for it."""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = (0x45D9F3B, 0x7FEB352D, 0x45D9F3B)  # below 2^31, so that a product with 32 bits fits int64
_ROWS_A_PART = 512  # of temporaries on a CPU, to stay in its cache


def mixed_bits(rows_T: Tensor, num_columns: int, *, seed: int) -> Tensor:
    """24 bits, as float32 [T, columns], mixed of each row's number (int64, not negative), the column and the seed.

    Both halves of the row's number count; rounds of multiply and xor-shift mix them.
    """
    rows_T = _scramble(rows_T & _MASK ^ seed & _MASK) ^ (rows_T >> 32) & _MASK
    rows_T = _scramble(rows_T ^ (seed >> 32) & _MASK)
    columns = torch.arange(num_columns, device=rows_T.device)
    step = _ROWS_A_PART if rows_T.device.type == "cpu" else max(1, rows_T.numel())
    parts = [(_scramble(part[:, None] ^ columns) >> 8).float() for part in rows_T.split(step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def uniform_bits(num_rows: int, num_columns: int, *, seed: int, device: torch.device | str) -> Tensor:
    """24 random bits as float32 [rows, columns]; the first rows do not depend on how many follow."""
    return mixed_bits(torch.arange(num_rows, device=device), num_columns, seed=seed)


def normal(num_rows: int, num_columns: int, *, seed: int, device: torch.device | str) -> Tensor:
    """Standard normal float32 [rows, columns], by the inverse of its distribution; devices agree to rounding."""
    bits = uniform_bits(num_rows, num_columns, seed=seed, device=device)
    return bits.sub_(8388607.5).mul_(2.0**-23).erfinv_().mul_(2.0**0.5)  # exact up to erfinv, which gets (-1, 1)


def _scramble(bits: Tensor) -> Tensor:
    bits = bits ^ (bits >> 16)
    for factor in _ROUNDS:
        bits.mul_(factor).bitwise_and_(_MASK)
        bits.bitwise_xor_(bits >> 16)
    return bits
