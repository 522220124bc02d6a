"""Arrays out of files, none of which may run code: no pickle is ever loaded.

Every reader takes a path and gives the arrays by name (of a .json or .pt file, whatever the mapping holds). All raise
ValueError with what is wrong, in words.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip
_LARGEST_JSON = 1 << 30


def safetensor(path: Path, name: str | None) -> Tensor:
    """One tensor of a safetensors file; the only one if ``name`` is None."""
    raw, header, start = _safetensors_header(path)
    chosen = next(iter(header)) if name is None and len(header) == 1 else name
    if chosen not in header:
        raise ValueError(f"tensor {chosen!r} is not among {', '.join(header)}")
    return _tensor_at(raw, header[chosen], start)


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    raw, header, start = _safetensors_header(path)
    return {name: as_array(_tensor_at(raw, entry, start)) for name, entry in header.items()}


def _safetensors_header(path: Path) -> tuple[np.ndarray, dict[str, Any], int]:
    """Raw bytes, entries by name, and where the data begin: 8 bytes header length, JSON header, data."""
    raw = np.memmap(path, dtype=np.uint8, mode="c") if path.stat().st_size else np.zeros(0, np.uint8)
    length = int.from_bytes(raw[:8].tobytes(), "little")
    try:
        header = json.loads(raw[8 : 8 + length].tobytes())
        return raw, {name: entry for name, entry in header.items() if name != "__metadata__"}, 8 + length
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"cannot be read as safetensors: {_first_line(error)}") from error


def _tensor_at(raw: np.ndarray, entry: Mapping[str, Any], start: int) -> Tensor:
    try:
        first, last = (start + offset for offset in entry["data_offsets"])
        return torch.from_numpy(raw[first:last].copy()).view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
        raise ValueError(f"cannot be read as safetensors: {type(error).__name__}: {_first_line(error)}") from error


def as_array(values: Any) -> np.ndarray:
    """A tensor, array or nested list of numbers as an array; bf16 becomes float32."""
    if isinstance(values, Tensor):
        wide = values.detach().cpu()
        return (wide.float() if wide.dtype == torch.bfloat16 else wide).numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"holds lists of unequal lengths: {error}") from error
    if array.dtype.kind not in "iuf":
        raise ValueError(f"holds {array.dtype} instead of numbers")
    return array


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: as_array(arrays[name]) for name in arrays.files}
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        raise ValueError(f"is no .npz file of plain arrays ({_first_line(error)})") from error


def _npy(path: Path) -> dict[str, np.ndarray]:
    try:
        return {path.stem: as_array(np.load(path, allow_pickle=False))}
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise ValueError(f"is no plain .npy array ({_first_line(error)})") from error


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError("is larger than 1 GiB; write it as .npz")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({_first_line(error)})") from error
    return _mapping(content)


def _pt(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the loader raises its own, pickle's and zip's
        said = _first_line(error)
        raise ValueError(f"holds more than tensors and plain values, or is no torch file ({said})") from error
    return _mapping(content)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _mapping(content: Any) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise ValueError(f"holds a {type(content).__name__} where names and values are needed")
    return {str(name): value for name, value in content.items()}


def _parquet(path: Path) -> dict[str, Any]:
    """Columns by name: arrays, and lists of numbers as arrays [rows, width]."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"is no Parquet file ({error})") from error
    return {name: _column(table.column(name).combine_chunks(), name) for name in table.column_names}


def _column(column: Any, name: str) -> np.ndarray:
    import pyarrow as pa

    if column.null_count:
        raise ValueError(f"column {name} has nulls")
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return as_array(column.to_numpy(zero_copy_only=False))
    values, rows = as_array(column.flatten().to_numpy(zero_copy_only=False)), len(column)
    widths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
    if widths.size > 1:
        raise ValueError(f"column {name} has lists of {widths[0]} to {widths[-1]} values; all must be of one length")
    return values.reshape(rows, -1)


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".json": _json,
    ".pt": _pt,
    ".parquet": _parquet,
}
