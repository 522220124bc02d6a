"""FP4 weights in their streaming form: what the kernels decode is what the format means."""

from dataclasses import replace

import pytest
import torch

from kernels.activation import Activation
from kernels.formats import FORMATS
from kernels.grouped_gemm.packed import pack_weights, unpack_weights
from kernels.moe import prepare_weights

# NVFP4 divides by the global scale block by block, the packed form once a column.
SPREAD = {"mxfp4": 0.0, "nvfp4": 2e-7}


def parts_of(decoded, gated, interleaved):
    if not gated:
        return decoded[:, None]
    return torch.stack((decoded[:, 0::2], decoded[:, 1::2]) if interleaved else decoded.chunk(2, 1), 1)


@pytest.mark.parametrize("name", SPREAD)
@pytest.mark.parametrize(("gated", "interleaved"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("columns", "k_size"), [(2, 2), (128, 128), (140, 200), (66, 2880)])
def test_packed_form_holds_the_same_values(name, gated, interleaved, columns, k_size):
    generator = torch.Generator().manual_seed(k_size)
    dense = torch.randn(3, columns, k_size, generator=generator) * torch.logspace(-4, 4, columns)[:, None]
    q = FORMATS[name].encode(dense, weights=True)
    packed = pack_weights(q, gated=gated, interleaved=interleaved)
    expected = parts_of(FORMATS[name].decode(q), gated, interleaved)
    torch.testing.assert_close(unpack_weights(packed), expected, rtol=SPREAD[name], atol=0)


def test_every_code_and_every_scale_byte_of_mxfp4():
    codes = torch.arange(16).repeat(2).to(torch.uint8)
    data = (codes[0::2] | codes[1::2] << 4).expand(1, 255, 16).contiguous()
    scale = torch.arange(255, dtype=torch.uint8)[None, :, None]
    q = replace(FORMATS["mxfp4"].encode(torch.ones(1, 255, 32)), data=data, scale=scale)
    assert torch.equal(unpack_weights(pack_weights(q))[:, 0], FORMATS["mxfp4"].decode(q))


def test_every_scale_byte_of_nvfp4():
    codes = torch.arange(16, dtype=torch.uint8)
    data = (codes[0::2] | codes[1::2] << 4).expand(1, 127, 8).contiguous()
    scale = torch.arange(127, dtype=torch.uint8)[None, :, None]
    q = replace(FORMATS["nvfp4"].encode(torch.ones(1, 127, 16)), data=data, scale=scale)
    q = replace(q, global_scale=torch.ones(1))
    assert torch.equal(unpack_weights(pack_weights(q))[:, 0], FORMATS["nvfp4"].decode(q))


@pytest.mark.parametrize("name", SPREAD)
def test_a_block_of_nan_stays_nan_and_alone(name):
    dense = torch.randn(1, 3, 128)
    dense[0, 1, 40] = float("nan")
    q = FORMATS[name].encode(dense)
    out = unpack_weights(pack_weights(q))[:, 0]
    assert torch.equal(out.isnan(), FORMATS[name].decode(q).isnan())
    assert out.isnan().any()


def test_scales_far_below_the_largest_of_their_column_lose_nothing_that_counts():
    dense = torch.ones(1, 1, 64) * 2.0**60
    dense[..., 32:] = 2.0**-60
    q = FORMATS["mxfp4"].encode(dense)
    assert torch.equal(unpack_weights(pack_weights(q))[:, 0], FORMATS["mxfp4"].decode(q))


def test_other_formats_are_refused_and_new_weights_make_it_out_of_date():
    with pytest.raises(ValueError, match="bf16 is not packed"):
        pack_weights(FORMATS["bf16"].encode(torch.ones(1, 4, 4)))
    made = [torch.randn(2, 64, 32), torch.randn(2, 32, 32)]
    experts = prepare_weights(*made, precision="mxfp4_w4a16", activation=Activation(interleaved=True)).packed()
    assert experts.is_packed
    assert experts.packed() is experts
    other = prepare_weights(*made, precision="mxfp4_w4a16")
    assert not replace(experts, w2=other.w2).is_packed
    with pytest.raises(ValueError, match=r"triton needs a GPU|packed"):
        other.backend_on(torch.device("cpu"), "triton")
