"""Rows on the wire: their bytes, and that decoding gives what the format gives."""

import pytest
import torch

from kernels.formats import FORMATS
from tests.workload.factory import make_cell
from workbench.comm.payload import (
    FORMAT_OF_DTYPE,
    combine_row_bytes,
    decode_rows,
    dispatch_row_bytes,
    encode_rows,
    encoded_bytes,
    metadata_bytes,
    payload_bytes,
    row_layout,
)
from workbench.spec.dispatch import Dispatch

DTYPES = list(FORMAT_OF_DTYPE)


def test_n15_combine_is_priced_at_its_own_dtype_and_scales_count():
    assert payload_bytes(7168, "fp8_block") == 7392
    assert payload_bytes(7168, "bf16") == 14336
    assert payload_bytes(7168, "mxfp8") == 7392
    assert payload_bytes(7168, "nvfp4") == 4032
    assert encoded_bytes(7168, "nvfp4") == 4036  # with the float32 scale of the row
    cell = make_cell(hidden=7168, top_k=8, dispatch=Dispatch(dispatch_dtype="fp8_block", combine_dtype="bf16"))
    assert dispatch_row_bytes(cell) == 7392 + 8
    assert combine_row_bytes(cell) == 14336
    assert metadata_bytes("node_dedup", 8) == 64
    assert metadata_bytes("none", 8) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [256, 7168, 200, 36])
def test_rows_have_the_promised_width_and_decode_to_the_formats_values(dtype, hidden):
    x = torch.randn(5, hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = encode_rows(x, dtype)
    assert rows.dtype == torch.uint8
    assert rows.shape == (5, encoded_bytes(hidden, dtype))
    behind = torch.cat([rows, torch.full((5, 16), 7, dtype=torch.uint8)], dim=1)
    values = decode_rows(behind, hidden, dtype)
    entry = FORMATS[FORMAT_OF_DTYPE[dtype]]
    one_by_one = torch.cat([entry.decode(entry.encode(x[i : i + 1]), torch.bfloat16) for i in range(5)])
    assert torch.equal(values, one_by_one)
    assert torch.equal(decode_rows(behind[2:3], hidden, dtype), one_by_one[2:3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows_is_no_trouble(dtype):
    rows = encode_rows(torch.empty(0, 256, dtype=torch.bfloat16), dtype)
    assert rows.shape == (0, encoded_bytes(256, dtype))
    assert decode_rows(rows, 256, dtype).shape == (0, 256)


def test_refusals_carry_the_numbers():
    with pytest.raises(ValueError, match="'fp6'"):
        row_layout(256, "fp6")
    with pytest.raises(ValueError, match="rows of 10 bytes"):
        decode_rows(torch.zeros(1, 10, dtype=torch.uint8), 256, "bf16")
