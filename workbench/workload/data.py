"""Activations of one rank, bf16 [T, H]: seeded, the same bytes on every machine.

Drawn distributions are read off a table of 2^16 quantiles (their midpoints), which bf16 does not resolve; the largest
normal value is thus 4.3. ``file`` takes rows of a matrix in turn, another part for every rank, and repeats them when
they run out.
"""

from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from workbench.spec.scenario import Cell
from workbench.spec.workload import Data, DataFile, OutlierChannels, StudentT
from workbench.workload.counter import CHANNELS, DATA, permutation, raw_words
from workbench.workload.sources import source_tokens
from workbench.workload.tensor_files import safetensor

_LEVELS = 1 << 16


def rank_activations(cell: Cell, *, rank: int, layer: int = 0, step: int = 0) -> Tensor:
    """bf16 [tokens_R[rank], H] by ``workload.data``. Raises ValueError for a file without [rows, H] numbers."""
    tokens, hidden = int(source_tokens(cell)[rank]), cell.model.hidden
    data, seed = cell.workload.data, cell.workload.seed
    if isinstance(data, DataFile):
        return _file_rows(data, tokens, hidden, first=(step * cell.ep + rank) * cell.workload.tokens_per_rank)
    words = raw_words(-(-tokens * hidden // 4), seed=seed, purpose=DATA, place=(rank, layer, step))
    codes = words.astype("<u8", copy=False).view("<u2")[: tokens * hidden]
    values = _bf16_quantiles(data)[codes].reshape(tokens, hidden)
    x_TH = torch.from_numpy(values).view(torch.bfloat16)
    if isinstance(data, OutlierChannels):
        x_TH[:, torch.from_numpy(_outliers(data, hidden, seed, layer))] *= data.factor
    return x_TH


@lru_cache(maxsize=8)
def _bf16_quantiles(data: Data) -> np.ndarray:
    """Bit patterns (int16) of the bf16 quantiles at (i + 1/2) / 2^16."""
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    if isinstance(data, StudentT):
        values = stdtrit(data.degrees, levels)
    else:
        inverse = NormalDist().inv_cdf
        upper = np.array([inverse(level) for level in levels[_LEVELS // 2 :]])
        values = np.concatenate([-upper[::-1], upper])
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()


def _outliers(data: OutlierChannels, hidden: int, seed: int, layer: int) -> np.ndarray:
    """Channels that are large, the same for all ranks and steps of a layer; at least one if the fraction is above 0."""
    count = max(1, round(data.fraction * hidden)) if data.fraction > 0 else 0
    return permutation(hidden, seed=seed, purpose=CHANNELS, place=(layer,))[:count].copy()


def _file_rows(data: DataFile, tokens: int, hidden: int, *, first: int) -> Tensor:
    path = Path(data.path)
    if path.suffix not in (".npy", ".safetensors"):
        raise ValueError(f"workload.data.path: {data.path} is neither .npy nor .safetensors")
    if not path.is_file():
        raise ValueError(f"workload.data.path: {data.path} is no file")
    matrix = _npy(path) if path.suffix == ".npy" else _safetensors(path, data.tensor)
    if matrix.dim() != 2 or matrix.shape[1] != hidden or not matrix.shape[0]:
        raise ValueError(f"workload.data.path: {data.path} holds {tuple(matrix.shape)}, needed are [rows, {hidden}]")
    return matrix[torch.arange(first, first + tokens) % matrix.shape[0]].to(torch.bfloat16)


def _npy(path: Path) -> Tensor:
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"workload.data.path: {path} is no plain .npy array ({error})") from error
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"workload.data.path: {path} holds {array.dtype}, needed is float16, float32 or float64")
    return torch.from_numpy(array)


def _safetensors(path: Path, name: str | None) -> Tensor:
    try:
        return safetensor(path, name)
    except ValueError as error:
        raise ValueError(f"workload.data: {path} {error}") from error
