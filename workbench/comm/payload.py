"""Rows on the wire. A row is one token in the dispatch or combine format: data bytes, then its scale bytes.

bf16: 2H. fp8_block: H codes (E4M3) + 4 * ceil(H/128) float32 scales. mxfp8: H codes + ceil(H/32) E8M0 bytes.
nvfp4: ceil(H/2) + ceil(H/16) E4M3 scales, and behind them the float32 scale of its row: rows part ways, so every
one brings its own. Metadata (slots int32 and weights float32 that ride with a row) stands after the row.
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from kernels.formats import FORMATS, Quantised
from workbench.comm.strategies import metadata_width
from workbench.spec.scenario import Cell
from workbench.workload.traffic import routing_width

FORMAT_OF_DTYPE = {"bf16": "bf16", "fp8_block": "e4m3_block", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
METADATA_BYTES_PER_PAIR = 8


@dataclass(frozen=True)
class RowLayout:
    """Bytes of one encoded row, part by part."""

    data: int
    scale: int
    global_scale: int

    @property
    def total(self) -> int:
        return self.data + self.scale + self.global_scale


def row_layout(hidden: int, dtype: str) -> RowLayout:
    """Raises ValueError for a dtype that has no wire format."""
    match dtype:
        case "bf16":
            return RowLayout(2 * hidden, 0, 0)
        case "fp8_block":
            return RowLayout(hidden, 4 * ceil(hidden / 128), 0)
        case "mxfp8":
            return RowLayout(hidden, ceil(hidden / 32), 0)
        case "nvfp4":
            return RowLayout(ceil(hidden / 2), ceil(hidden / 16), 4)
    raise ValueError(f"dispatch dtype {dtype!r} has no wire format; known: {', '.join(FORMAT_OF_DTYPE)}")


def payload_bytes(hidden: int, dtype: str) -> int:
    """Data and block scales of one token; nvfp4's scale of the row comes on top (``encoded_bytes``)."""
    layout = row_layout(hidden, dtype)
    return layout.data + layout.scale


def encoded_bytes(hidden: int, dtype: str) -> int:
    """Width of a row that ``encode_rows`` makes."""
    return row_layout(hidden, dtype).total


def metadata_bytes(strategy: str, top_k: int) -> int:
    """Routing that rides with a dispatch row: 4 bytes slot and 4 bytes weight per column.

    A row that several experts share has a column for each choice of its token, any other a single one.
    """
    return metadata_width(strategy, top_k) * METADATA_BYTES_PER_PAIR


def dispatch_row_bytes(cell: Cell) -> int:
    """Bytes of one dispatch row of a cell with a model, metadata included."""
    dispatch = cell.dispatch
    payload = encoded_bytes(cell.model.hidden, dispatch.dispatch_dtype)
    return payload + metadata_bytes(dispatch.strategy, routing_width(cell))


def combine_row_bytes(cell: Cell) -> int:
    """Bytes of one combine row; the order of the rows is known, so nothing rides with them."""
    return encoded_bytes(cell.model.hidden, cell.dispatch.combine_dtype)


def encode_rows(x_MH: Tensor, dtype: str) -> Tensor:
    """bf16 or float32 rows [M, H] to uint8 [M, encoded_bytes]."""
    num_rows, hidden = x_MH.shape
    layout = row_layout(hidden, dtype)
    if not num_rows:
        return torch.empty(0, layout.total, dtype=torch.uint8, device=x_MH.device)
    if dtype == "bf16":
        return x_MH.to(torch.bfloat16).contiguous().view(torch.uint8).reshape(num_rows, layout.total)
    if dtype == "nvfp4":
        x_MH = x_MH.unsqueeze(1)  # a stack of one-row matrices: each row gets its own global scale
    encoded = FORMATS[FORMAT_OF_DTYPE[dtype]].encode(x_MH)
    parts = [part for part in (encoded.data, encoded.scale, encoded.global_scale) if part is not None]
    return torch.cat([part.contiguous().view(torch.uint8).reshape(num_rows, -1) for part in _columns(parts)], dim=1)


def decode_rows(rows_MB: Tensor, hidden: int, dtype: str, *, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values [M, H] of encoded rows; bytes behind ``encoded_bytes`` (metadata) are passed over."""
    num_rows = rows_MB.shape[0]
    layout = row_layout(hidden, dtype)
    if rows_MB.shape[1] < layout.total:
        raise ValueError(f"rows of {rows_MB.shape[1]} bytes are too short for {dtype} of hidden {hidden}")
    if not num_rows:
        return torch.empty(0, hidden, dtype=out_dtype, device=rows_MB.device)
    if dtype == "bf16":
        return _reinterpret(rows_MB[:, : layout.total], torch.bfloat16).to(out_dtype)
    quantised = quantised_rows(rows_MB, hidden, dtype)
    return FORMATS[quantised.format].decode(quantised, out_dtype).reshape(num_rows, hidden)


def quantised_rows(rows_MB: Tensor, hidden: int, dtype: str) -> Quantised:
    """Encoded rows as the kernels' tensor (no decode): what a GEMM that takes this format reads. M > 0."""
    layout = row_layout(hidden, dtype)
    num_rows = rows_MB.shape[0]
    data, scale, global_scale = rows_MB[:, : layout.total].split([layout.data, layout.scale, layout.global_scale], 1)
    data = data.contiguous()
    scale = _reinterpret(scale, torch.float32 if dtype == "fp8_block" else torch.uint8)
    name = FORMAT_OF_DTYPE[dtype]
    rule = FORMATS[name].scale_rules[0]
    if dtype == "nvfp4":
        single = _reinterpret(global_scale, torch.float32).reshape(num_rows)
        single = single.masked_fill(single == 0, 1.0)  # a padding row is all zeros, and its values are zeros
        shape = (num_rows, 1, hidden)
        return Quantised(name, shape, data.unsqueeze(1), scale.unsqueeze(1), single, rule, "saturate")
    return Quantised(name, (num_rows, hidden), data, scale, None, rule, "saturate")


def _reinterpret(part_MB: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes read as ``dtype``; copied, because a slice may start at an address that is no multiple of its size."""
    return part_MB.clone(memory_format=torch.contiguous_format).view(dtype)


def _columns(parts: list[Tensor]) -> list[Tensor]:
    """Scalars per row become columns, so that viewing as bytes keeps the rows."""
    return [part.unsqueeze(-1) if part.dim() == 1 else part for part in parts]
