"""Installed libraries beside ours: one file a peer, found by the name that a scenario's ``kernel`` gives it."""

from kernels.adapters import (
    deep_gemm,
    flashinfer,
    sglang,
    torch_grouped,
    transformer_engine,
    triton_kernels,
    tutel,
    vllm,
)
from kernels.adapters.base import Adapter, Layer, LayerRequest, PeerBroken, math_path, refusal, version

__all__ = ["ADAPTERS", "Adapter", "Layer", "LayerRequest", "PeerBroken", "math_path", "refusal", "version"]

ADAPTERS: dict[str, Adapter] = {
    peer.ADAPTER.name: peer.ADAPTER
    for peer in (torch_grouped, vllm, sglang, flashinfer, deep_gemm, triton_kernels, transformer_engine, tutel)
}
