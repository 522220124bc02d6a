"""FP8 E4M3 and E5M2 with float32 scales: one a matrix (tensor), one a row, or one a block.

Encode: scale = amax / largest, code = cast(x / scale). Decode: value = code * scale, in float32. amax passes over NaN
(which stays where it is) and is at least ``scales.AMAX_FLOOR``. Blocks are 1x128 along K for activations and 128x128
for weights, the layout of DeepSeek-V3's checkpoints (its ``weight_scale_inv`` is this scale). The scale rule ``ceil``
rounds each scale up to a power of two, as DeepSeek-V3.1 stores them; ``none`` keeps it as it is.

Shapes of ``scale``: tensor [...]; row [..., N]; block [..., N, ceil(K/128)], or with weights
[..., ceil(N/128), ceil(K/128)].
"""

from functools import partial

import torch
from torch import Tensor

from kernels.formats.base import Format, Quantised, check_request, decode_parts, encode_parts, fused_on
from kernels.formats.elements import E4M3, E5M2, from_e4m3, from_e5m2, from_e8m0, to_e4m3, to_e5m2
from kernels.formats.scales import finite_amax, from_blocks, power_of_two_scale, to_blocks, true_divide

BLOCK = 128
SCALE_RULES = ("none", "ceil")
_CASTS = {"e4m3": (to_e4m3, from_e4m3, E4M3), "e5m2": (to_e5m2, from_e5m2, E5M2)}


def encode_fp8(
    x: Tensor,
    *,
    element: str,
    granularity: str,
    weights: bool = False,
    scale_rule: str = "none",
    overflow: str = "saturate",
) -> Quantised:
    """Encode [..., N, K]; see the module for scales and shapes. Raises ValueError for a bad shape, dtype or option."""
    name = f"{element}_{granularity}"
    check_request(x, name, scale_rule=scale_rule, scale_rules=SCALE_RULES, overflow=overflow)
    if fused_on(x):
        from kernels.formats.triton_encode import triton_encode_fp8 as fused

        options = {"weights": weights, "scale_rule": scale_rule, "overflow": overflow}
        data, scale = fused(x, element=element, granularity=granularity, **options)
    else:
        encode = partial(_encode_matrices, element=element, granularity=granularity, weights=weights)
        encode = partial(encode, scale_rule=scale_rule, overflow=overflow)
        data, scale = encode_parts(x, encode, rows_alone=granularity != "tensor" and not weights)
    return Quantised(name, tuple(x.shape), data, scale, None, scale_rule, overflow)


def _encode_matrices(
    x: Tensor, *, element: str, granularity: str, weights: bool, scale_rule: str, overflow: str
) -> tuple[Tensor, Tensor]:
    """Codes and scales of matrices [..., N, K] in torch, the twin of ``triton_encode.triton_encode_fp8``."""
    cast, _, limits = _CASTS[element]
    num_rows, num_columns = x.shape[-2:]
    rows, columns = _block_shape(granularity, num_rows, num_columns, weights)
    blocks = to_blocks(x, rows, columns)
    if not num_rows and granularity == "tensor":
        blocks = x.new_zeros(*x.shape[:-2], 1, 1, 1, num_columns)
    amax = finite_amax(blocks, (-3, -1))
    if scale_rule == "ceil":
        scale = from_e8m0(power_of_two_scale(amax, limits, "ceil"))
    else:
        scale = true_divide(amax, limits.largest)
    codes = cast(blocks.float() / scale, overflow)
    return from_blocks(codes, num_rows, num_columns).contiguous(), _squeeze(scale, granularity)


def decode_fp8(q: Quantised, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of ``q.shape`` in ``dtype``: the float32 product, rounded once to ``dtype``."""
    element, granularity = q.format.split("_")
    _, cast, _ = _CASTS[element]
    num_rows, num_columns = q.shape[-2:]
    # Weights have fewer scale rows than rows, unless there is but one row, where both layouts agree.
    weights = granularity == "block" and q.scale.shape[-2] != num_rows
    rows, columns = _block_shape(granularity, num_rows, num_columns, weights)

    def decode(data: Tensor, scale: Tensor, _: Tensor | None) -> Tensor:
        if not data.numel():
            return data.float()
        values = to_blocks(cast(data), rows, columns)
        spread = scale.reshape(*values.shape[:-4], values.shape[-4], 1, values.shape[-2], 1)
        return from_blocks(values * spread, num_rows, num_columns)

    return decode_parts(q, decode, dtype, rows_alone=granularity != "tensor" and rows == 1)


def _block_shape(granularity: str, num_rows: int, num_columns: int, weights: bool) -> tuple[int, int]:
    if granularity == "tensor":
        return max(num_rows, 1), num_columns
    if granularity == "row":
        return 1, num_columns
    return (BLOCK if weights else 1), BLOCK


def _squeeze(scale: Tensor, granularity: str) -> Tensor:
    """[..., rows, 1, columns, 1] without the dimensions that are always 1."""
    scale = scale.squeeze(-1).squeeze(-2)
    if granularity == "block":
        return scale
    return scale.squeeze(-1) if granularity == "row" else scale.squeeze(-1).squeeze(-1)


def _format(element: str, granularity: str, tolerance: float) -> Format:
    encode = partial(encode_fp8, element=element, granularity=granularity)
    return Format(f"{element}_{granularity}", encode, decode_fp8, tolerance, 8, SCALE_RULES)


FORMATS = {
    entry.name: entry
    for entry in (
        *(_format("e4m3", granularity, 0.03) for granularity in ("tensor", "row", "block")),
        *(_format("e5m2", granularity, 0.06) for granularity in ("tensor", "row", "block")),
    )
}
