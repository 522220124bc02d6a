"""GGUF's MXFP4 blocks as input: 17 bytes for 32 values, the scale byte first, then 16 bytes of codes.

Byte j of the codes has element j in its low nibble and element j + 16 in its high one, unlike ours and OCP's
neighbours; the values are the same E2M1 times 2^(scale - 127). GGUF has no NaN scale: byte 255, which no finite tensor
gives, is NaN here. Source: ggml-org/llama.cpp, ``gguf-py/gguf/quants.py``.
"""

import torch
from torch import Tensor

from kernels.formats.base import Quantised
from kernels.formats.elements import pack_nibbles
from kernels.formats.gpt_oss import STORED
from kernels.formats.mx import BLOCK

BLOCK_BYTES = 17


def from_gguf(raw: Tensor) -> Quantised:
    """uint8 [..., N, K/32 * 17], rows as they lie in the file, as mxfp4 [..., N, K]. Raises ValueError for others."""
    if raw.dtype != torch.uint8 or raw.dim() < 2 or not raw.shape[-1] or raw.shape[-1] % BLOCK_BYTES:
        found = f"{raw.dtype} {tuple(raw.shape)}"
        raise ValueError(f"gguf: MXFP4 rows must be uint8 [..., N, blocks * {BLOCK_BYTES}], got {found}")
    blocks = raw.unflatten(-1, (-1, BLOCK_BYTES))
    scale, pairs = blocks[..., 0].contiguous(), blocks[..., 1:]
    data = pack_nibbles(torch.cat((pairs & 15, pairs >> 4), dim=-1)).flatten(-2)
    return Quantised("mxfp4", (*raw.shape[:-1], scale.shape[-1] * BLOCK), data, scale, None, STORED, "saturate")
