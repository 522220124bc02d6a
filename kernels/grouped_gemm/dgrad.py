"""Input gradients of a grouped GEMM: every gradient row times the weights of its expert, summed over output columns.

M rows in expert order, E experts, N output columns of the forward product (reduced here), K its input columns.
Backends: ``torch`` (the forward product's own, on transposed weights; every format) and ``triton`` (BF16, which reads
the forward weights where they lie, and FP8 with block or tensor scales).
"""

import torch
from torch import Tensor

from kernels.backend import BACKENDS, capability_of, triton_unsupported
from kernels.formats import Quantised
from kernels.grouped_gemm import grouped_gemm

# (gradient format, weight format) -> least compute capability of the Triton kernel.
DGRAD_CAPABILITY = {("bf16", "bf16"): (8, 0)} | {
    (f"{gradients}_{granularity}", f"e4m3_{granularity}"): (8, 9)
    for gradients in ("e4m3", "e5m2")
    for granularity in ("block", "tensor")
}


def grouped_dgrad(
    grads_MN: Tensor | Quantised, offsets: Tensor, w_EKN: Quantised, *, grads_format: str, backend: str = "auto"
) -> Tensor:
    """BF16 [M, K]: the rows (BF16, or encoded in ``grads_format``) times the transposed weights of their expert.

    ``w_EKN``: the forward weights transposed, for BF16 best as a view. Rows past the last offset come back as zeros.
    """
    device = offsets.device
    if dgrad_backend(device, backend, grads_format, w_EKN.format) == "triton":
        from kernels.grouped_gemm.triton_dgrad import triton_dgrad

        return triton_dgrad(grads_MN, offsets, w_EKN)
    return grouped_gemm(grads_MN, offsets, w_EKN, activations_format=grads_format, backend="torch")


def dgrad_backend(device: torch.device, backend: str, grads_format: str, weights_format: str) -> str:
    """``torch`` or ``triton``; formats without a Triton kernel run in torch, whatever ``backend`` says.

    ValueError for an unknown name, or ``triton`` where this machine cannot run it.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: {backend!r} is unknown; known: {', '.join(BACKENDS)}")
    least = DGRAD_CAPABILITY.get((grads_format, weights_format))
    if least is None or backend == "torch":
        return "torch"
    reason = triton_unsupported(least, device_type=device.type, capability=capability_of(device))
    if backend == "triton" and reason:
        raise ValueError(f"backend: {reason}; use torch")
    return "triton" if backend == "triton" or (device.type == "cuda" and reason is None) else "torch"
