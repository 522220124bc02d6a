"""The correctness gate: how far a result is from the float32 reference, and how far it may be."""

import math
from dataclasses import dataclass

import torch

BF16_ROUNDING = 2.0**-8


@dataclass(frozen=True)
class Deviation:
    """``rel_error`` = ||actual - expected|| / ||expected||; ``worst_row`` the same for the worst row."""

    rel_error: float
    sqnr_db: float | None
    worst_row: float
    worst_row_index: int


def deviation(actual_TH: torch.Tensor, expected_TH: torch.Tensor) -> Deviation:
    """Deviation over rows [T, H]; non-finite actual values count as an infinite error."""
    if actual_TH.shape != expected_TH.shape:
        raise ValueError(f"shape {tuple(actual_TH.shape)} instead of {tuple(expected_TH.shape)}")
    if actual_TH.numel() == 0:
        return Deviation(0.0, None, 0.0, -1)
    expected = expected_TH.double()
    difference = actual_TH.double() - expected
    if not torch.isfinite(difference).all():
        row = int((~torch.isfinite(difference)).any(dim=-1).nonzero()[0])
        return Deviation(math.inf, None, math.inf, row)
    norm, scale = difference.norm(), expected.norm()
    rel_error = float(norm / scale) if scale > 0 else float(norm)
    row_scale = expected.norm(dim=-1).clamp_min(float(scale) / math.sqrt(len(expected)) * 1e-3 + 1e-30)
    rows = difference.norm(dim=-1) / row_scale
    worst = int(rows.argmax())
    sqnr = -20 * math.log10(rel_error) if rel_error > 0 else None
    return Deviation(rel_error, sqnr, float(rows[worst]), worst)


def error_limit(*, weights: float, activations: float, wire: float = 0.0) -> float:
    """Largest relative error that rounding explains for two chained GEMMs.

    Arguments are the relative RMS errors of the weight format, of the activation format and of the bytes on
    the wire (0 for exact). Errors add in squares over both GEMMs; a factor 2 covers the activation between
    them, and eight bf16 roundings the accumulators and the combine.
    """
    return 2 * math.sqrt(2 * (weights**2 + activations**2) + wire**2) + 8 * BF16_ROUNDING
