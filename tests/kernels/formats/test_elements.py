"""Casts of single elements, against ml_dtypes for every input that can be listed and at every rounding boundary."""

import ml_dtypes
import numpy as np
import pytest
import torch

from kernels.formats.elements import (
    from_e2m1,
    from_e4m3,
    from_e5m2,
    from_e8m0,
    pack_nibbles,
    to_e2m1,
    to_e4m3,
    to_e5m2,
    unpack_e2m1,
    unpack_nibbles,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
NAN, INF = float("nan"), float("inf")
ELEMENTS = {
    "e4m3": (to_e4m3, from_e4m3, ml_dtypes.float8_e4m3fn, 256, 448.0),
    "e5m2": (to_e5m2, from_e5m2, ml_dtypes.float8_e5m2, 256, 57344.0),
    "e2m1": (to_e2m1, from_e2m1, ml_dtypes.float4_e2m1fn, 16, 6.0),
}


def all_bf16() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def oracle(x: torch.Tensor, dtype) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return x.float().cpu().numpy().astype(dtype).view(np.uint8)


def e4m3(values: list[float], overflow: str, device: str) -> list[float]:
    return from_e4m3(to_e4m3(torch.tensor(values, device=device), overflow)).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_a01_e4m3_overflow_is_named(device):
    values = [448.0, 464.0, 465.0, 480.0, 1000.0, -1000.0, INF, NAN]
    saturated = e4m3(values, "saturate", device)
    assert saturated[:7] == [448, 448, 448, 448, 448, -448, 448]
    assert np.isnan(saturated[7])
    cut = e4m3(values, "nan", device)
    assert cut[:2] == [448, 448]
    assert np.isnan(cut[2:]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a03_e5m2_rounds_before_it_overflows(device):
    x = torch.tensor([57344.0, 61439.0, 61440.0, 65536.0, -61440.0, INF], device=device)
    assert from_e5m2(to_e5m2(x, "nan")).tolist() == [57344, 57344, INF, INF, -INF, INF]
    assert from_e5m2(to_e5m2(x)).tolist() == [57344, 57344, 57344, 57344, -57344, 57344]


@pytest.mark.parametrize("device", DEVICES)
def test_a04_float32_to_e4m3_rounds_once(device):
    assert e4m3([1.0625001, 400.199585, 272.156555], "saturate", device) == [1.125, 416, 288]
    assert e4m3([1.0625, 400.0, 272.0], "saturate", device) == [1.0, 384, 256]


@pytest.mark.parametrize("name", ELEMENTS)
def test_a04_float64_is_refused_because_it_would_round_twice(name):
    with pytest.raises(ValueError, match="float64"):
        ELEMENTS[name][0](torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("device", DEVICES)
def test_a06_e2m1_ties_go_to_even(device):
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, 0.2500001, 5.0000005], device=device)
    expected = [0, 1, 1, 2, 2, 4, 4, 6, 0.5, 6]
    assert from_e2m1(to_e2m1(x)).tolist() == expected
    assert from_e2m1(to_e2m1(-x)).tolist() == [-value for value in expected]


@pytest.mark.parametrize("device", DEVICES)
def test_a08_e8m0_ends_of_the_range(device):
    values = from_e8m0(torch.tensor([0, 1, 126, 127, 254, 255], dtype=torch.uint8, device=device))
    assert values[:5].tolist() == [2.0**-127, 2.0**-126, 0.5, 1.0, 2.0**127]
    assert values[5].isnan()
    one = from_e4m3(torch.tensor([0x38], dtype=torch.uint8, device=device))
    assert (one * values[0]).item() == 2.0**-127


@pytest.mark.parametrize("device", DEVICES)
def test_a21_low_nibble_holds_the_even_element(device):
    codes = to_e2m1(torch.tensor([[1.0, -6.0]], device=device))
    assert pack_nibbles(codes).tolist() == [[0xF2]]
    every = torch.arange(16, dtype=torch.uint8, device=device)
    assert torch.equal(unpack_nibbles(pack_nibbles(every), 16), every)
    assert torch.equal(unpack_nibbles(pack_nibbles(every[:5]), 5), every[:5])
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(unpack_e2m1(pack_nibbles(every[:5]), 5, dtype), from_e2m1(every[:5], dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ELEMENTS)
def test_encode_equals_ml_dtypes_for_every_bf16(name, device):
    encode, _, dtype, _, largest = ELEMENTS[name]
    x = all_bf16().to(device)
    # ml_dtypes saturates E2M1 but not FP8, whose infinities and NaN are the mode "nan".
    codes = encode(x) if name == "e2m1" else encode(x, "nan")
    np.testing.assert_array_equal(codes.cpu().numpy(), oracle(x, dtype))
    np.testing.assert_array_equal(encode(x).cpu().numpy(), oracle(x.float().clamp(-largest, largest), dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ELEMENTS)
def test_encode_equals_ml_dtypes_around_every_boundary(name, device):
    encode, _, dtype, count, _ = ELEMENTS[name]
    with np.errstate(invalid="ignore"):
        values = np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    edges = np.concatenate([values, middles])
    near = np.concatenate([edges, np.nextafter(edges, np.float32(INF)), np.nextafter(edges, np.float32(-INF))])
    x = torch.from_numpy(near.astype(np.float32)).to(device)
    np.testing.assert_array_equal(encode(x).cpu().numpy(), oracle(x, dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ELEMENTS)
def test_decode_equals_ml_dtypes_for_every_code(name, target, device):
    _, decode, dtype, count, _ = ELEMENTS[name]
    codes = np.arange(count, dtype=np.uint8)
    values = decode(torch.from_numpy(codes).to(device), target).float().cpu().numpy()
    with np.errstate(invalid="ignore"):
        expected = codes.view(dtype).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(values)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("device", DEVICES)
def test_e8m0_decode_equals_ml_dtypes_for_every_byte(device):
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values = from_e8m0(torch.from_numpy(codes).to(device))
    np.testing.assert_array_equal(values.cpu().numpy(), expected)
    np.testing.assert_array_equal(from_e8m0(torch.from_numpy(codes), torch.bfloat16).float().numpy(), expected)


@pytest.mark.parametrize("name", ELEMENTS)
def test_views_and_odd_lengths_cast_as_their_copies_do(name):
    encode, decode, _, count, _ = ELEMENTS[name]
    codes = torch.arange(count, dtype=torch.uint8).repeat(3)
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    for target in (torch.float32, torch.bfloat16, torch.float16):
        one_by_one = torch.stack([decode(code, target) for code in codes])
        for view in (slice(None), slice(1, None), slice(0, 7), slice(3, 8), slice(None, None, 2), slice(0, 0)):
            assert torch.equal(decode(codes[view], target).nan_to_num(nan=-1.0), one_by_one[view].nan_to_num(nan=-1.0))
    assert torch.equal(encode(x.T), encode(x).T)
    assert torch.equal(encode(x[:, 1::2]), encode(x)[:, 1::2])
    assert torch.equal(encode(x[0, 0]), encode(x)[0, 0])


def test_packing_of_views_equals_that_of_their_copies():
    codes = torch.arange(96, dtype=torch.uint8).reshape(6, 16) % 16
    flat = codes.flatten()[1:33]
    for view in (codes[:, ::2], codes[:, 1:9], codes.T, flat, codes[:0], codes[1:, :5]):
        wide = torch.nn.functional.pad(view, (0, view.shape[-1] % 2))
        assert torch.equal(pack_nibbles(view), wide[..., 0::2] + 16 * wide[..., 1::2])


@pytest.mark.parametrize("name", ["e5m2", "e2m1"])
def test_a04_what_lies_below_bf16_decides_a_tie(name):
    """A float32 that differs from a midpoint only in its last bit is not taken for the midpoint."""
    encode, decode, _, _, _ = ELEMENTS[name]
    tie, next_value = {"e2m1": (1.25, 1.5), "e5m2": (1.125, 1.25)}[name]
    down, up = (torch.tensor(tie).nextafter(torch.tensor(side)) for side in (0.0, 9.0))
    assert decode(encode(torch.stack([down, torch.tensor(tie), up]))).tolist() == [1.0, 1.0, next_value]
