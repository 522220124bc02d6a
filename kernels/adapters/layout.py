"""Weights as peers want them: the order of gate and up rows, FP8 codes under torch's own dtype.

E experts, I intermediate, H hidden. Conversions copy only where the order changes.
"""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.adapters.base import LayerRequest
from kernels.formats import Quantised
from kernels.moe import ExpertWeights

BLOCK = 128
BLOCK_FORMATS = ("e4m3_block", "e5m2_block")


def fp8_codes(weights: Quantised) -> Tensor:
    """The codes of an E4M3 tensor as torch.float8_e4m3fn, a view."""
    return weights.data.view(torch.float8_e4m3fn)


def order_refusal(request: LayerRequest, wanted: str) -> str | None:
    """Why the rows of w13 cannot take the order ``wanted``, or None: 128x128 scales move with whole blocks alone."""
    have = _order_of(request.activation.interleaved)
    if have == wanted or request.recipe.weights not in BLOCK_FORMATS:
        return None
    if "interleaved" not in (have, wanted) and request.intermediate % BLOCK == 0:
        return None
    return f"wants gate and up rows {wanted}, which {request.recipe.weights} scales over {BLOCK} rows do not allow"


def ordered(experts: ExpertWeights, wanted: str) -> ExpertWeights:
    """The same experts with the rows of w13 ``stacked`` (gates, then ups), ``up_first`` or ``interleaved``.

    Gates g0 g1 and ups u0 u1: stacked g0 g1 u0 u1, up_first u0 u1 g0 g1, interleaved g0 u0 g1 u1. The activation of
    the result says interleaved or not; that of ``up_first`` is the peer's business. Raises ValueError where a scale
    covers rows that would part.
    """
    have = _order_of(experts.activation.interleaved)
    if have == wanted:
        return experts
    width = experts.w13.shape[1] // 2
    index = _row_index(have, wanted, width, experts.w13.data.device)
    return replace(
        experts,
        w13=_take_rows(experts.w13, index, width),
        bias13=None if experts.bias13 is None else experts.bias13[:, index],
        activation=replace(experts.activation, interleaved=wanted == "interleaved"),
    )


def _order_of(interleaved: bool) -> str:
    return "interleaved" if interleaved else "stacked"


def _row_index(have: str, wanted: str, width: int, device: torch.device) -> Tensor:
    """Old row of each new row, int64 [2 * width]."""
    rows = torch.arange(2 * width, device=device)
    gate, up = (rows[0::2], rows[1::2]) if have == "interleaved" else (rows[:width], rows[width:])
    if wanted == "interleaved":
        return torch.stack((gate, up), dim=1).flatten()
    return torch.cat((up, gate) if wanted == "up_first" else (gate, up))


def _take_rows(weights: Quantised, index: Tensor, width: int) -> Quantised:
    scale = weights.scale
    if scale is not None and weights.format in BLOCK_FORMATS:
        if width % BLOCK or not torch.equal(index[:BLOCK] - index[0], torch.arange(BLOCK, device=index.device)):
            raise ValueError(f"{weights.format}: its scales cover {BLOCK} rows, which would part in this order")
        scale = scale[:, index[::BLOCK].div(BLOCK, rounding_mode="floor")]
    elif scale is not None and scale.dim() > 1:
        scale = scale[:, index]
    return replace(weights, data=weights.data[:, index], scale=scale)
