"""GPT-OSS's stored experts as MXFP4, and back: no value changes, the codes and the scale bytes are only seen anew.

A checkpoint holds for each matrix [E, N, K] ``*_blocks`` uint8 [E, N, K/32, 16] and ``*_scales`` uint8 [E, N, K/32]:
byte j of a block has element 2j in its low nibble and 2j + 1 in its high one, and a scale byte b means 2^(b - 127).
Gate and up are the even and odd rows of one matrix ``gate_up_proj`` [E, 2I, H], and of its bias [E, 2I]; ``down_proj``
is [E, H, I]. The kernels take rows and biases in this order (``Activation(kind="clamped_swiglu", interleaved=True)``).
Source: openai/gpt-oss, ``gpt_oss/torch/weights.py``, and the tensor names of the checkpoint on Hugging Face.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.formats.base import Quantised
from kernels.formats.mx import BLOCK

MATRICES = ("gate_up_proj", "down_proj")
STORED = "stored"
"""The scale rule of tensors whose scales come from a file that does not name the rule they were made by."""


@dataclass(frozen=True, eq=False)
class StoredExperts:
    """One layer: ``w13`` [E, 2I, H] with gate and up rows in turn, ``w2`` [E, H, I], biases [E, 2I] and [E, H]."""

    w13: Quantised
    w2: Quantised
    bias13: Tensor | None
    bias2: Tensor | None


def from_gpt_oss(blocks: Tensor, scales: Tensor) -> Quantised:
    """``*_blocks`` [E, N, K/32, 16] (or without E) and ``*_scales`` [E, N, K/32] as mxfp4 [E, N, K]; views, no copy.

    Raises ValueError for another dtype, or shapes that do not belong together.
    """
    fits = blocks.dim() >= 3 and blocks.shape[-1] == BLOCK // 2 and scales.shape == blocks.shape[:-1]
    if not fits or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        found = f"{blocks.dtype} {tuple(blocks.shape)} and {scales.dtype} {tuple(scales.shape)}"
        raise ValueError(f"gpt-oss: blocks and scales must be uint8 [E, N, K/32, 16] and [E, N, K/32], got {found}")
    shape = (*blocks.shape[:-2], blocks.shape[-2] * BLOCK)
    return Quantised("mxfp4", shape, blocks.flatten(-2), scales, None, STORED, "saturate")


def to_gpt_oss(q: Quantised) -> tuple[Tensor, Tensor]:
    """(blocks, scales) of mxfp4 [E, N, K], as ``from_gpt_oss`` takes them. Raises ValueError unless 32 divides K."""
    if q.format != "mxfp4" or q.shape[-1] % BLOCK:
        raise ValueError(f"gpt-oss: stores mxfp4 with K a multiple of {BLOCK}, got {q.format} of shape {q.shape}")
    return q.data.unflatten(-1, (-1, BLOCK // 2)), q.scale


def load_layer(tensors: Mapping[str, Tensor], prefix: str = "") -> StoredExperts:
    """The experts of one layer from tensors by name, such as a safetensors file opened by the caller.

    ``prefix`` comes before ``gate_up_proj_blocks``: ``model.layers.0.mlp.experts.``. Biases may be missing.
    Raises ValueError, naming the tensor, for a missing one or gate and up rows that do not fit ``down_proj``.
    """
    names = [f"{prefix}{name}_{part}" for name in MATRICES for part in ("blocks", "scales")]
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"gpt-oss: no tensor {', '.join(missing)}")
    blocks13, scales13, blocks2, scales2 = (tensors[name] for name in names)
    w13, w2 = from_gpt_oss(blocks13, scales13), from_gpt_oss(blocks2, scales2)
    wanted = (*w2.shape[:-2], 2 * w2.shape[-1], w2.shape[-2])
    if w13.shape != wanted:
        raise ValueError(f"gpt-oss: {names[0]} is {w13.shape}, but {names[2]} is {w2.shape}, which needs {wanted}")
    bias13, bias2 = (tensors[bias] if (bias := f"{prefix}{name}_bias") in tensors else None for name in MATRICES)
    return StoredExperts(w13, w2, bias13, bias2)


def store_layer(experts: StoredExperts, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of one layer by the names that ``load_layer`` reads."""
    tensors = {}
    parts = ((experts.w13, experts.bias13), (experts.w2, experts.bias2))
    for name, (weights, bias) in zip(MATRICES, parts, strict=True):
        tensors[f"{prefix}{name}_blocks"], tensors[f"{prefix}{name}_scales"] = to_gpt_oss(weights)
        if bias is not None:
            tensors[f"{prefix}{name}_bias"] = bias
    return tensors


def interleave(experts: StoredExperts) -> StoredExperts:
    """All gate rows before all up rows -> gate and up in turn, as GPT-OSS stores them; the bias too.

    Scales run along K, so rows move whole and no value changes. ``[g0, g1, u0, u1]`` becomes ``[g0, u0, g1, u1]``.
    """
    return _reorder(experts, torch.arange(experts.w13.shape[-2]).view(2, -1).T.flatten())


def separate(experts: StoredExperts) -> StoredExperts:
    """The inverse of ``interleave``: all gate rows, then all up rows."""
    return _reorder(experts, torch.arange(experts.w13.shape[-2]).view(-1, 2).T.flatten())


def _reorder(experts: StoredExperts, order: Tensor) -> StoredExperts:
    w13, bias13 = experts.w13, experts.bias13
    order = order.to(w13.data.device)
    rows = replace(w13, data=w13.data.index_select(-2, order), scale=w13.scale.index_select(-2, order))
    return replace(experts, w13=rows, bias13=None if bias13 is None else bias13.index_select(-1, order))
