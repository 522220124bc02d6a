"""GPT-OSS's and GGUF's stored MXFP4: values worked out by hand and byte by byte, and whole layers there and back."""

from dataclasses import replace

import pytest
import torch

from kernels.activation import Activation
from kernels.formats import FORMATS
from kernels.formats.gguf import from_gguf
from kernels.formats.gpt_oss import (
    StoredExperts,
    from_gpt_oss,
    interleave,
    load_layer,
    separate,
    store_layer,
    to_gpt_oss,
)
from kernels.moe import ExpertWeights, moe_layer
from kernels.reference import moe_reference

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
decode = FORMATS["mxfp4"].decode


def random_bytes(*shape: int, low: int = 0, high: int = 256, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)


def layer(num_experts: int = 3, hidden: int = 64, width: int = 32) -> StoredExperts:
    return StoredExperts(
        from_gpt_oss(
            random_bytes(num_experts, 2 * width, hidden // 32, 16),
            random_bytes(num_experts, 2 * width, hidden // 32, low=118, high=126, seed=1),
        ),
        from_gpt_oss(
            random_bytes(num_experts, hidden, width // 32, 16, seed=2),
            random_bytes(num_experts, hidden, width // 32, low=118, high=126, seed=3),
        ),
        torch.randn(num_experts, 2 * width, generator=torch.Generator().manual_seed(4)).bfloat16(),
        torch.randn(num_experts, hidden, generator=torch.Generator().manual_seed(5)).bfloat16(),
    )


def test_gpt_oss_blocks_byte_by_byte():
    blocks, scales = random_bytes(2, 3, 4, 16), random_bytes(2, 3, 4, low=100, high=150, seed=1)
    q = from_gpt_oss(blocks, scales)
    assert (q.format, q.shape, q.nbytes) == ("mxfp4", (2, 3, 128), blocks.numel() + scales.numel())
    values = decode(q)
    for expert, row, block, byte in ((0, 0, 0, 0), (1, 2, 3, 15), (0, 2, 1, 7), (1, 0, 2, 8)):
        pair, scale = blocks[expert, row, block, byte].item(), 2.0 ** (scales[expert, row, block].item() - 127)
        column = 32 * block + 2 * byte
        assert values[expert, row, column] == E2M1[pair & 15] * scale
        assert values[expert, row, column + 1] == E2M1[pair >> 4] * scale


def test_gpt_oss_layout_there_and_back():
    blocks, scales = random_bytes(2, 6, 90, 16), random_bytes(2, 6, 90, seed=1)
    back = to_gpt_oss(from_gpt_oss(blocks, scales))
    assert torch.equal(back[0], blocks)
    assert torch.equal(back[1], scales)
    encoded = FORMATS["mxfp4"].encode(torch.randn(2, 6, 2880))
    again = from_gpt_oss(*to_gpt_oss(encoded))
    assert torch.equal(decode(again), decode(encoded))
    assert again.expert(1).shape == (6, 2880)


def test_a_gpt_oss_layer_by_the_names_of_its_checkpoint():
    experts, prefix = layer(), "model.layers.7.mlp.experts."
    tensors = store_layer(experts, prefix)
    names = [f"{m}_{p}" for m in ("gate_up_proj", "down_proj") for p in ("blocks", "scales", "bias")]
    assert set(tensors) == {prefix + name for name in names}
    assert tensors[prefix + "gate_up_proj_blocks"].shape == (3, 64, 2, 16)
    loaded = load_layer(tensors, prefix)
    assert torch.equal(loaded.w13.data, experts.w13.data)
    assert torch.equal(loaded.bias13, experts.bias13)
    assert torch.equal(loaded.bias2, experts.bias2)
    without = {name: tensor for name, tensor in tensors.items() if "bias" not in name}
    assert load_layer(without, prefix).bias2 is None


def test_gpt_oss_rows_are_gate_and_up_in_turn():
    """The stored order, run as it is, equals the reference on gate rows and up rows taken apart."""
    experts = layer()
    x, ids = torch.randn(9, 64).bfloat16(), torch.randint(0, 3, (9, 1)).int()
    weights = torch.rand(9, 1)
    kind = Activation("clamped_swiglu", interleaved=True)
    stored = ExpertWeights(experts.w13, experts.w2, experts.bias13, experts.bias2, kind, "mxfp4_w4a16")
    y = moe_layer(x, ids, weights, stored)
    apart = separate(experts)
    w13 = decode(experts.w13)
    assert torch.equal(decode(apart.w13), torch.cat((w13[:, 0::2], w13[:, 1::2]), 1))
    expected = moe_reference(
        x,
        ids,
        weights,
        decode(apart.w13),
        decode(apart.w2),
        bias13=apart.bias13,
        bias2=apart.bias2,
        activation=replace(kind, interleaved=False),
    )
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item())
    again = interleave(apart)
    assert torch.equal(again.w13.data, experts.w13.data)
    assert torch.equal(again.w13.scale, experts.w13.scale)
    assert torch.equal(again.bias13, experts.bias13)


def test_gguf_block_byte_by_byte():
    raw = random_bytes(2, 3, 4 * 17)
    raw[..., ::17] = random_bytes(2, 3, 4, low=0, high=255, seed=1)
    q = from_gguf(raw)
    assert (q.format, q.shape) == ("mxfp4", (2, 3, 128))
    values = decode(q)
    for row, block, element in ((0, 0, 0), (2, 3, 31), (1, 2, 15), (1, 1, 16), (0, 3, 5)):
        start = 17 * block
        byte = raw[1, row, start + 1 + element % 16].item()
        code = byte & 15 if element < 16 else byte >> 4
        wanted = torch.tensor(E2M1[code]) * torch.tensor(2.0 ** (raw[1, row, start].item() - 127))
        assert values[1, row, 32 * block + element] == wanted


def test_gguf_values_are_those_of_its_own_library():
    gguf = pytest.importorskip("gguf")
    raw = random_bytes(40, 3 * 17)
    raw[:, ::17] = random_bytes(40, 3, low=0, high=255, seed=1)
    wanted = gguf.dequantize(raw.numpy(), gguf.GGMLQuantizationType.MXFP4)
    assert torch.equal(decode(from_gguf(raw)), torch.from_numpy(wanted))
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(3))
    theirs = from_gguf(torch.from_numpy(gguf.quantize(x.numpy(), gguf.GGMLQuantizationType.MXFP4)))
    ours = FORMATS["mxfp4"].encode(x, scale_rule="floor")
    assert torch.equal(theirs.scale, ours.scale)
    assert torch.equal(decode(theirs), decode(ours))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_gpt_oss(torch.zeros(2, 3, 4, 15).byte(), torch.zeros(2, 3, 4).byte()), r"\(2, 3, 4, 15\)"),
        (lambda: from_gpt_oss(torch.zeros(2, 3, 4, 16).byte(), torch.zeros(2, 3, 5).byte()), r"\(2, 3, 5\)"),
        (lambda: from_gpt_oss(torch.zeros(2, 3, 4, 16), torch.zeros(2, 3, 4)), "uint8"),
        (lambda: to_gpt_oss(FORMATS["mxfp4"].encode(torch.ones(2, 33))), "multiple of 32"),
        (lambda: to_gpt_oss(FORMATS["mxfp8"].encode(torch.ones(2, 32))), "got mxfp8"),
        (lambda: load_layer({}, "a."), "no tensor a.gate_up_proj_blocks"),
        (lambda: from_gguf(torch.zeros(2, 18).byte()), "17"),
    ],
)
def test_what_is_not_in_the_layout_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_layer_whose_matrices_do_not_fit_is_refused():
    tensors = store_layer(layer(width=32)) | store_layer(layer(width=64), "b.")
    tensors |= {name: tensors[f"b.{name}"] for name in ("down_proj_blocks", "down_proj_scales")}
    with pytest.raises(ValueError, match="gate_up_proj_blocks"):
        load_layer(tensors)
