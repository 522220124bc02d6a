"""Grouped GEMM in plain torch, every format, CPU and CUDA: the twin the Triton kernel is tested against.

M rows in expert order, E experts, N output columns, K reduced. The offsets are read on the host.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kernels.formats import FORMATS, Quantised

# Decoded values of these formats are exact in BF16, so their BF16 products summed in float32 are what hardware forms.
EXACT_IN_BF16 = frozenset({"bf16", "mxfp8", "mxfp4"})
MAX_DECODED_ELEMENTS = 1 << 28


def torch_grouped_gemm(
    rows: Tensor | Quantised, offsets: Tensor, weights: Quantised, *, bias_EN: Tensor | None = None
) -> Tensor:
    """BF16 [M, N]: rows times their expert's weights, plus bias. Rows past the last offset come back as zeros.

    Weights stored small are decoded inside the call, for the experts that have rows only: to BF16 beside BF16 rows,
    as a weight-only kernel does, and to float32 beside quantised rows where BF16 would round the scaled values.
    """
    dtype = _wide_dtype(rows, weights)
    a_MK = FORMATS[rows.format].decode(rows, dtype) if isinstance(rows, Quantised) else rows.to(dtype)
    if _grouped_mm_works(a_MK, weights, bias_EN):
        return _grouped_mm(a_MK, offsets, weights.data)
    bounds = offsets.tolist()
    out_MN = torch.empty(a_MK.shape[0], weights.shape[1], dtype=torch.bfloat16, device=a_MK.device)
    out_MN[bounds[-1] :] = 0
    bias_EN = None if bias_EN is None else bias_EN.to(dtype)
    for e, w_NK in _decoded_experts(weights, bounds, dtype):
        part = a_MK[bounds[e] : bounds[e + 1]]
        out_MN[bounds[e] : bounds[e + 1]] = part @ w_NK.T if bias_EN is None else torch.addmm(bias_EN[e], part, w_NK.T)
    return out_MN


def _wide_dtype(rows: Tensor | Quantised, weights: Quantised) -> torch.dtype:
    if not isinstance(rows, Quantised):
        return torch.bfloat16
    return torch.bfloat16 if {rows.format, weights.format} <= EXACT_IN_BF16 else torch.float32


def _decoded_experts(weights: Quantised, bounds: list[int], dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """(expert, its weights [N, K]) of the experts with rows, decoded many at a time within a bound on memory."""
    touched = [e for e in range(weights.shape[0]) if bounds[e] < bounds[e + 1]]
    if weights.format == "bf16":
        yield from ((e, weights.data[e]) for e in touched)
        return
    at_once = max(1, MAX_DECODED_ELEMENTS // max(1, weights.shape[1] * weights.shape[2]))
    for first in range(0, len(touched), at_once):
        part = touched[first : first + at_once]
        yield from zip(part, FORMATS[weights.format].decode(_select(weights, part), dtype), strict=True)


def _select(weights: Quantised, experts: list[int]) -> Quantised:
    """The weights of some experts; a copy unless they are consecutive."""
    first, count = experts[0], len(experts)
    index: slice | Tensor = slice(first, first + count)
    if experts[-1] - first + 1 != count:
        index = torch.tensor(experts, device=weights.data.device)
    return replace(
        weights,
        shape=(count, *weights.shape[1:]),
        data=weights.data[index],
        scale=None if weights.scale is None else weights.scale[index],
        global_scale=None if weights.global_scale is None else weights.global_scale[index],
    )


def _grouped_mm_works(a_MK: Tensor, weights: Quantised, bias_EN: Tensor | None) -> bool:
    """``torch._grouped_mm`` wants sm_90, BF16 both sides and 16-byte strides, and adds no bias."""
    if not a_MK.is_cuda or weights.format != "bf16" or a_MK.dtype != torch.bfloat16 or bias_EN is not None:
        return False
    aligned = all(size % 8 == 0 and size > 0 for size in (*a_MK.shape[1:], *weights.shape[1:]))
    return aligned and a_MK.shape[0] > 0 and torch.cuda.get_device_capability(a_MK.device)[0] == 9


def _grouped_mm(a_MK: Tensor, offsets: Tensor, w_ENK: Tensor) -> Tensor:
    """The CUTLASS grouped product; it leaves rows past the last offset unwritten, so they are cleared here."""
    out_MN = torch._grouped_mm(a_MK.contiguous(), w_ENK.transpose(1, 2), offs=offsets[1:].to(torch.int32))
    row_M1 = torch.arange(out_MN.shape[0], device=out_MN.device)[:, None]
    return out_MN.masked_fill_(row_M1 >= offsets[-1], 0)
