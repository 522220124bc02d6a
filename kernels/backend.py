"""Which backend runs a kernel: ``torch`` (any device, any format) or ``triton`` (a GPU, or the interpreter)."""

import os
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "torch", "triton")
ROW_CAPABILITY = (8, 0)
# (weight format, activation format) -> least compute capability that multiplies it.
GEMM_CAPABILITY = {("bf16", "bf16"): (8, 0), ("e4m3_block", "e4m3_block"): (8, 9)}
# The same for the fused layer. FP4 weights are multiplied in BF16, by rows that BF16 holds exactly.
FUSED_CAPABILITY = GEMM_CAPABILITY | {
    ("e4m3_row", "e4m3_row"): (8, 9),
    ("e4m3_tensor", "e4m3_tensor"): (8, 9),
    ("mxfp8", "mxfp8"): (9, 0),
    ("mxfp4", "bf16"): (9, 0),
    ("mxfp4", "mxfp8"): (9, 0),
    ("mxfp4", "mxfp4"): (9, 0),
    ("nvfp4", "bf16"): (9, 0),
    ("nvfp4", "nvfp4"): (10, 0),
}
# Pairs whose blocks the matrix unit of sm_100 scales itself; the last one has no other kernel.
SCALED_PAIRS = (("mxfp8", "mxfp8"), ("mxfp4", "mxfp8"), ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"))
SCALED_MAJOR, SCALED_TRITON = 10, (3, 9)

Capability = tuple[int, int] | None


def triton_unsupported(least: tuple[int, int], *, device_type: str, capability: Capability) -> str | None:
    """Why Triton cannot run here a kernel that needs the capability ``least``, or None where it can."""
    if not _has_triton():
        return "triton is not installed"
    if device_type != "cuda":
        interpreting = os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreting else f"triton needs a GPU or TRITON_INTERPRET=1, not {device_type}"
    if capability is None or tuple(capability) < least:
        found = "is unknown" if capability is None else "is {}.{}".format(*capability)
        return f"triton needs compute capability {least[0]}.{least[1]} for this, and the GPU's {found}"
    return None


def scales_itself(weights_format: str, activations_format: str, capability: Capability) -> bool:
    """Whether the fused layer gives codes and block scales to the matrix unit as they are stored."""
    pair = (weights_format, activations_format)
    if pair == SCALED_PAIRS[-1]:
        return True
    return pair in SCALED_PAIRS and capability is not None and capability[0] == SCALED_MAJOR and _new_enough()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _new_enough() -> bool:
    """Triton 3.6 compiles one such product in a loop, and fails at the two of gate and up."""
    return tuple(int(part) for part in version("triton").split("+")[0].split(".")[:2]) >= SCALED_TRITON


def choose_gemm_backend(
    backend: str, weights_format: str, activations_format: str, *, device_type: str, capability: Capability
) -> str:
    """``torch`` or ``triton`` for a grouped GEMM; ValueError for an unknown name, or ``triton`` where it cannot run."""
    least = GEMM_CAPABILITY.get((weights_format, activations_format))
    if least is None:
        return _choose(backend, f"triton has no kernel for {weights_format} x {activations_format}", device_type)
    return _choose(backend, triton_unsupported(least, device_type=device_type, capability=capability), device_type)


def gemm_backend_on(device: torch.device, backend: str, weights_format: str, activations_format: str) -> str:
    """``choose_gemm_backend`` for a device of this machine."""
    return choose_gemm_backend(
        backend, weights_format, activations_format, device_type=device.type, capability=capability_of(device)
    )


def choose_layer_backend(
    backend: str, weights_format: str, activations_format: str, *, device_type: str, capability: Capability
) -> str:
    """``triton`` where the fused layer runs, else ``torch``; ValueError as ``choose_gemm_backend``."""
    least = FUSED_CAPABILITY.get((weights_format, activations_format))
    if least is None:
        return _choose(backend, f"triton has no kernel for {weights_format} x {activations_format}", device_type)
    reason = triton_unsupported(least, device_type=device_type, capability=capability)
    if reason is None and (weights_format, activations_format) == SCALED_PAIRS[-1] and not _new_enough():
        reason = "triton needs version {}.{} for this".format(*SCALED_TRITON)
    return _choose(backend, reason, device_type)


def layer_backend_on(device: torch.device, backend: str, weights_format: str, activations_format: str) -> str:
    """``choose_layer_backend`` for a device of this machine."""
    return choose_layer_backend(
        backend, weights_format, activations_format, device_type=device.type, capability=capability_of(device)
    )


def row_backend_on(device: torch.device, backend: str) -> str:
    """``torch`` or ``triton`` for the kernels that work row by row: quantise, activation, combine."""
    reason = triton_unsupported(ROW_CAPABILITY, device_type=device.type, capability=capability_of(device))
    return _choose(backend, reason, device.type)


def capability_of(device: torch.device) -> Capability:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def _choose(backend: str, reason: str | None, device_type: str) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"backend: {backend!r} is unknown; known: {', '.join(BACKENDS)}")
    if backend == "triton" and reason:
        raise ValueError(f"backend: {reason}; use torch")
    if backend == "auto":
        return "triton" if device_type == "cuda" and reason is None else "torch"
    return backend
