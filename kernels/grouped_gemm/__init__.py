"""Grouped GEMM of a mixture-of-experts layer: one product an expert over ragged groups of rows.

M rows in expert order, E experts, N output columns, K reduced. Backends: ``torch`` (every format, any device) and
``triton`` (BF16 and FP8 block); ``auto`` takes Triton on a GPU where it has the formats.
"""

import torch
from torch import Tensor

from kernels.backend import gemm_backend_on
from kernels.formats import FORMATS, Quantised
from kernels.grouped_gemm.torch_gemm import torch_grouped_gemm


def quantise_rows(
    rows_MK: Tensor, activations_format: str, *, weights: Quantised, backend: str = "auto"
) -> Tensor | Quantised:
    """The rows as the GEMM reads them: BF16, or encoded with the weights' overflow and, where it fits, scale rule."""
    if activations_format == "bf16":
        return rows_MK.to(torch.bfloat16)
    entry = FORMATS[activations_format]
    rule = weights.scale_rule if weights.scale_rule in entry.scale_rules else entry.scale_rules[0]
    plain = rule == "none" and weights.overflow == "saturate" and rows_MK.dtype == torch.bfloat16
    if (
        activations_format == "e4m3_block"
        and plain
        and gemm_backend_on(rows_MK.device, backend, weights.format, activations_format) == "triton"
    ):
        from kernels.triton_rows import triton_quantise_block

        return triton_quantise_block(rows_MK)
    return entry.encode(rows_MK, scale_rule=rule, overflow=weights.overflow)


def grouped_gemm(
    rows_MK: Tensor | Quantised,
    offsets: Tensor,
    weights: Quantised,
    *,
    activations_format: str,
    bias_EN: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """BF16 [M, N]: row m times the weights of its expert, plus bias; summed in float32.

    Rows ``offsets[e]:offsets[e + 1]`` (int64 [E + 1]) meet expert e of ``weights`` [E, N, K]. Rows past the last offset
    come back as zeros. Rows not encoded yet are encoded to ``activations_format`` first. Raises ValueError for shapes
    that do not fit and for a backend that cannot run here.
    """
    _check_shapes(rows_MK, offsets, weights, bias_EN)
    if activations_format not in FORMATS:
        raise ValueError(f"activations_format: {activations_format!r} is unknown; known: {', '.join(FORMATS)}")
    if isinstance(rows_MK, Quantised) and rows_MK.format != activations_format:
        raise ValueError(f"activations_format: rows are {rows_MK.format}, not {activations_format}")
    device = rows_MK.data.device if isinstance(rows_MK, Quantised) else rows_MK.device
    if 0 in (rows_MK.shape[0], weights.shape[1]):
        return torch.empty(rows_MK.shape[0], weights.shape[1], dtype=torch.bfloat16, device=device)
    chosen = gemm_backend_on(device, backend, weights.format, activations_format)
    rows = rows_MK
    if not isinstance(rows_MK, Quantised):
        rows = quantise_rows(rows_MK, activations_format, weights=weights, backend=backend)
    if chosen == "triton":
        from kernels.grouped_gemm.triton_gemm import triton_grouped_gemm

        return triton_grouped_gemm(rows, offsets, weights, bias_EN=bias_EN)
    return torch_grouped_gemm(rows, offsets, weights, bias_EN=bias_EN)


def _check_shapes(rows: Tensor | Quantised, offsets: Tensor, weights: Quantised, bias_EN: Tensor | None) -> None:
    num_experts, n_size, k_size = weights.shape
    if len(rows.shape) != 2 or rows.shape[1] != k_size:
        raise ValueError(
            f"rows: shape {tuple(rows.shape)} does not fit weights {tuple(weights.shape)}; want [M, {k_size}]"
        )
    if offsets.shape != (num_experts + 1,):
        raise ValueError(f"offsets: shape {tuple(offsets.shape)}; want [{num_experts + 1}] for {num_experts} experts")
    if bias_EN is not None and bias_EN.shape != (num_experts, n_size):
        raise ValueError(f"bias_EN: shape {tuple(bias_EN.shape)}; want [{num_experts}, {n_size}]")
