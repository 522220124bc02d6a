"""Whole formats against torchao on random blocks: which of its roundings are ours, to the byte."""

import pytest
import torch

from kernels.formats import FORMATS
from kernels.formats.elements import unpack_nibbles

pytest.importorskip("torchao")
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

MODES = {"floor": ScaleCalculationMode.FLOOR, "ceil": ScaleCalculationMode.RCEIL, "even": ScaleCalculationMode.EVEN}
ELEMENTS = {"mxfp8": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}


def blocks(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal data in rows of magnitudes from 2^-100 to 2^100, some of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x *= torch.exp2(torch.randint(-100, 100, (*shape[:-1], 1), generator=generator))
    x[:, ::13] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rule", MODES)
@pytest.mark.parametrize("name", ELEMENTS)
def test_mx_equals_torchao_on_random_blocks(name, rule, dtype):
    x = blocks(500, 1024, dtype=dtype, seed=1)
    scale, data = to_mx(x, ELEMENTS[name], 32, scaling_mode=MODES[rule])
    q = FORMATS[name].encode(x, scale_rule=rule)
    assert torch.equal(q.scale, scale.view(torch.uint8))
    assert torch.equal(q.data, data.view(torch.uint8).view(q.data.shape))


def test_ceil_is_not_what_torchao_calls_so():
    """Its CEIL takes the next power of two of amax and so loses a bit in most blocks; ours is its RCEIL."""
    x = blocks(100, 1024, dtype=torch.float32, seed=2)
    scale, _ = to_mx(x, torch.float4_e2m1fn_x2, 32, scaling_mode=ScaleCalculationMode.CEIL)
    ahead = scale.view(torch.uint8).int() - FORMATS["mxfp4"].encode(x, scale_rule="ceil").scale.int()
    assert set(ahead.unique().tolist()) == {0, 1}


def test_zeros_infinities_and_nan_have_torchaos_scales():
    x = torch.zeros(4, 64)
    x[1, 5], x[2, 40] = float("nan"), float("inf")
    for name, element in ELEMENTS.items():
        for rule, mode in MODES.items():
            scale, _ = to_mx(x, element, 32, scaling_mode=mode)
            assert torch.equal(FORMATS[name].encode(x, scale_rule=rule).scale, scale.view(torch.uint8)), (name, rule)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nvfp4_equals_torchao_on_random_blocks(dtype):
    """Its scale of the matrix is our reciprocal; it multiplies by a rounded reciprocal where we divide."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(300, 1024, generator=generator).to(dtype)
    ours = FORMATS["nvfp4"].encode(x, global_scale=torch.tensor(512.0))
    scale, data = nvfp4_quantize(x, per_tensor_scale=torch.tensor(1 / 512.0))
    assert torch.equal(ours.scale, scale.view(torch.uint8))
    found, wanted = (unpack_nibbles(packed, 1024).int() for packed in (ours.data, data.view(torch.uint8)))
    assert (found != wanted).float().mean() < 2e-3
    assert ((found - wanted).abs() <= 1).all()
    own = FORMATS["nvfp4"].encode(x)
    scale, _ = nvfp4_quantize(x, per_tensor_scale=x.abs().amax().float() / 2688)
    assert torch.equal(own.scale, scale.view(torch.uint8))
