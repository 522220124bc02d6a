"""Weight gradients of a grouped GEMM: for every expert, its gradient rows transposed times its input rows.

M rows in expert order, E experts, N output columns, K reduced ones of the forward product. The sum here runs over the
rows of an expert, so scales of a block or a row are formed along them, inside one expert: operands with such scales
are encoded here, transposed, and not taken from the forward pass. A tensor-wide scale suits both directions.
Backends: ``torch`` (every format, any dtype, any device; reads the offsets on the host) and ``triton`` (BF16, and FP8
with block or tensor scales; never waits).
"""

import torch
from torch import Tensor

from kernels.backend import BACKENDS, capability_of, triton_unsupported
from kernels.formats import FORMATS, Quantised

EXACT = "exact"
_FP8 = (8, 9)
# (gradient format, input format) -> least compute capability of the Triton kernel.
WGRAD_CAPABILITY = {("bf16", "bf16"): (8, 0)} | {
    (f"{gradients}_{granularity}", f"e4m3_{granularity}"): _FP8
    for gradients in ("e4m3", "e5m2")
    for granularity in ("block", "tensor")
}


def grouped_wgrad(
    grads_MN: Tensor | Quantised,
    rows_MK: Tensor | Quantised,
    offsets: Tensor,
    *,
    grads_format: str,
    rows_format: str,
    scale_rule: str | None = None,
    overflow: str = "saturate",
    backend: str = "auto",
) -> Tensor:
    """[E, N, K]: sum over the rows of expert e of grads[m, n] * rows[m, k], in float32 (``exact``: in their own dtype).

    ``*_format``: a name of FORMATS, or ``exact`` for both. Experts without rows get zeros; rows past the last offset
    count for nothing. Raises ValueError for shapes that do not fit and a backend that cannot run here.
    """
    if len(grads_MN.shape) != 2 or len(rows_MK.shape) != 2 or grads_MN.shape[0] != rows_MK.shape[0]:
        raise ValueError(
            f"wgrad: gradients {tuple(grads_MN.shape)} and rows {tuple(rows_MK.shape)}; want [M, N], [M, K]"
        )
    for operand, name in ((grads_MN, grads_format), (rows_MK, rows_format)):
        if isinstance(operand, Quantised) and not (operand.format == name and name.endswith("_tensor")):
            raise ValueError(f"wgrad: rows encoded as {operand.format} have no scales along {name}'s; give them wide")
    data = grads_MN.data if isinstance(grads_MN, Quantised) else grads_MN
    chosen = wgrad_backend(data.device, backend, grads_format, rows_format)
    rules = {"scale_rule": scale_rule, "overflow": overflow}
    if chosen == "triton" and scale_rule in (None, "none") and overflow == "saturate":
        from kernels.grouped_gemm.triton_wgrad import triton_wgrad

        grads, rows = (
            _encoded(operand, name, **rules) if name.endswith("_tensor") else operand
            for operand, name in ((grads_MN, grads_format), (rows_MK, rows_format))
        )
        return triton_wgrad(grads, rows, offsets, grads_format=grads_format, rows_format=rows_format)
    return torch_wgrad(grads_MN, rows_MK, offsets, grads_format=grads_format, rows_format=rows_format, **rules)


def wgrad_backend(device: torch.device, backend: str, grads_format: str, rows_format: str) -> str:
    """``torch`` or ``triton``; ValueError for an unknown name, or ``triton`` where it cannot run."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: {backend!r} is unknown; known: {', '.join(BACKENDS)}")
    least = WGRAD_CAPABILITY.get((grads_format, rows_format))
    reason = f"triton has no wgrad for {grads_format} x {rows_format}"
    if least is not None:
        reason = triton_unsupported(least, device_type=device.type, capability=capability_of(device))
    if backend == "triton" and reason:
        raise ValueError(f"backend: {reason}; use torch")
    if backend == "auto":
        return "triton" if device.type == "cuda" and reason is None else "torch"
    return backend


def torch_wgrad(
    grads_MN: Tensor | Quantised,
    rows_MK: Tensor | Quantised,
    offsets: Tensor,
    *,
    grads_format: str,
    rows_format: str,
    scale_rule: str | None = None,
    overflow: str = "saturate",
) -> Tensor:
    """The twin of the Triton kernels: one product an expert."""
    rules = {"scale_rule": scale_rule, "overflow": overflow}
    whole = []
    for operand, name in ((grads_MN, grads_format), (rows_MK, rows_format)):
        if name.endswith("_tensor"):
            encoded = _encoded(operand, name, **rules)
            operand = FORMATS[name].decode(encoded)
        whole.append(operand)
    grads_MN, rows_MK = whole
    dtype = grads_MN.dtype if grads_format == EXACT else torch.float32
    num_experts = offsets.shape[0] - 1
    out = torch.zeros(num_experts, grads_MN.shape[1], rows_MK.shape[1], dtype=dtype, device=grads_MN.device)
    bounds = offsets.tolist()
    for e in range(num_experts):
        part = slice(bounds[e], bounds[e + 1])
        if bounds[e] < bounds[e + 1]:
            grads_NM = _transposed(grads_MN[part], grads_format, **rules)
            rows_KM = _transposed(rows_MK[part], rows_format, **rules)
            out[e] = _product(grads_NM, rows_KM.T, dtype)
    return out


def _encoded(operand: Tensor | Quantised, name: str, *, scale_rule: str | None, overflow: str) -> Quantised:
    if isinstance(operand, Quantised):
        return operand
    entry = FORMATS[name]
    rule = scale_rule if scale_rule in entry.scale_rules else entry.scale_rules[0]
    return entry.encode(operand, scale_rule=rule, overflow=overflow)


def _transposed(part_mC: Tensor, name: str, *, scale_rule: str | None, overflow: str) -> Tensor:
    """[C, m] as the format leaves it, scales along the rows m of one expert."""
    if name == EXACT or name.endswith("_tensor"):
        return part_mC.T
    if name == "bf16":
        return part_mC.to(torch.bfloat16).T
    encoded = _encoded(part_mC.T.contiguous(), name, scale_rule=scale_rule, overflow=overflow)
    return FORMATS[name].decode(encoded)


def _product(grads_Nm: Tensor, rows_mK: Tensor, dtype: torch.dtype) -> Tensor:
    """Summed and returned in ``dtype``, which BF16 operands reach exactly on either device."""
    if grads_Nm.dtype == rows_mK.dtype == torch.bfloat16 and grads_Nm.is_cuda:
        return torch.mm(grads_Nm, rows_mK, out_dtype=dtype)
    return grads_Nm.to(dtype) @ rows_mK.to(dtype)
