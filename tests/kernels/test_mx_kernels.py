"""The microscaling kernels against their torch twins in triton's interpreter, and the forms that they read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.formats import FORMATS
from kernels.grouped_gemm.packed_mx8 import pack_mxfp8, unpack_mxfp8
from kernels.moe import prepare_weights

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results():
    pytest.importorskip("triton")
    settings = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("mx_cases.py"))],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_products_are_those_of_the_decoded_operands(results):
    """All that is lost is BF16's rounding of the output."""
    assert len(results["products"]) == 45
    allowed = 2 * FORMATS["bf16"].tolerance
    assert {case: found for case, found in results["products"].items() if found > allowed} == {}


def test_rows_brought_to_bf16_equal_encode_and_decode(results):
    assert all(results["rows"].values()), results["rows"]


def test_a_nan_weight_spoils_its_column_alone(results):
    assert results["nan"]


def test_no_tokens_dropped_tokens_and_repeats(results):
    for precision, (shape, dropped, repeats, dropped_row) in results["empty"].items():
        assert (shape, dropped, repeats, dropped_row) == ([0, 48], 0, True, 0), precision


def test_rows_that_come_encoded_are_taken_as_they_are(results):
    assert results["encoded"] == dict.fromkeys(("mxfp8", "mxfp4_w4a8", "mxfp4", "nvfp4"), True)


def test_slots_of_a_cache_go_through_the_packed_kernels(results):
    """Several waves round their rows to BF16 before the sum, one does not."""
    assert set(results["offload"]) == {"mxfp8", "mxfp4_w4a16", "mxfp4_w4a8"}
    assert all(found <= 2 * FORMATS["bf16"].tolerance for found in results["offload"].values()), results["offload"]


@pytest.mark.parametrize(("columns", "k_size"), [(2, 2), (128, 128), (140, 200), (66, 2880)])
def test_packed_mxfp8_holds_the_same_values(columns, k_size):
    dense = torch.randn(3, columns, k_size, generator=torch.Generator().manual_seed(k_size))
    q = FORMATS["mxfp8"].encode(dense * torch.logspace(-4, 4, columns)[:, None], weights=True)
    packed = pack_mxfp8(q)
    assert torch.equal(unpack_mxfp8(packed), FORMATS["mxfp8"].decode(q))
    assert (packed.words.data_ptr() == q.data.data_ptr()) == (k_size % 32 == 0), "codes are copied only to pad them"


def test_every_scale_byte_of_a_column_relative_to_its_largest():
    scale = torch.arange(255, dtype=torch.uint8)[None, :, None].repeat(1, 1, 2)
    scale[..., 1] = scale[..., 0].int().sub(100).clamp(min=0).to(torch.uint8)
    q = FORMATS["mxfp8"].encode(torch.ones(1, 255, 64))
    q = type(q)(**(vars(q) | {"scale": scale, "data": torch.full((1, 255, 64), 0x38, dtype=torch.uint8)}))
    expected = FORMATS["mxfp8"].decode(q)
    found = unpack_mxfp8(pack_mxfp8(q))
    # The least scales are subnormal in float32, which holds their products no more exactly than this.
    torch.testing.assert_close(found, expected, rtol=0, atol=2.0**-126)
    assert torch.equal(found[:, 101:], expected[:, 101:])


def test_mxfp8_needs_its_packed_form_for_the_fused_kernels():
    experts = prepare_weights(torch.randn(2, 64, 32), torch.randn(2, 32, 32), precision="mxfp8")
    assert not experts.is_packed
    packed = experts.packed()
    assert packed.is_packed
    assert packed.packed13.shape == (2, 2, 32, 32)
    assert packed.packed2.shape == (2, 1, 32, 32)
    assert torch.equal(unpack_mxfp8(packed.packed13), FORMATS["mxfp8"].decode(experts.w13))
