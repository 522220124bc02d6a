"""Whole formats: scales, tails, stacks, bad numbers, bytes, and what survives a second encoding."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.formats import FORMATS, Quantised, base
from kernels.formats.elements import E2M1, E4M3, from_e4m3, from_e8m0
from kernels.formats.scales import power_of_two_scale
from kernels.recipes import RECIPES, format_name
from workbench.spec.precision import PRECISIONS, tensor_bytes

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
NAN, INF = float("nan"), float("inf")
RULES = [(name, rule) for name, entry in FORMATS.items() for rule in entry.scale_rules]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_rms(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).pow(2).mean() / wanted.pow(2).mean()).sqrt().item()


def restore(q: Quantised, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return FORMATS[q.format].decode(q, dtype)


def assert_same(found: Quantised, wanted: Quantised) -> None:
    for part in ("data", "scale", "global_scale"):
        one, other = getattr(found, part), getattr(wanted, part)
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_a10_mxfp4_floor_rule_takes_the_exponent_of_the_maximum(device):
    x = torch.zeros(3, 32, device=device)
    x[:, 7] = torch.tensor([2.7, 5.5, 1.2], device=device)
    q = FORMATS["mxfp4"].encode(x)
    assert q.scale_rule == "floor"
    assert q.scale.flatten().tolist() == [126, 127, 125]
    assert restore(q).amax(1).tolist() == [3.0, 6.0, 1.0]


@pytest.mark.parametrize("device", DEVICES)
def test_a13_nvfp4_of_zeros_is_finite(device):
    q = FORMATS["nvfp4"].encode(torch.zeros(4, 64, device=device))
    assert q.global_scale.isfinite().all()
    assert not (q.scale == 0x7F).any()
    assert (restore(q) == 0).all()
    stack = normal(8, 4, 64).to(device)
    stack[3] = 0
    weights = restore(FORMATS["nvfp4"].encode(stack))
    output = torch.einsum("mk,enk->emn", normal(5, 64).to(device), weights)
    assert output.isfinite().all()
    assert (output[3] == 0).all()
    assert (output[2] != 0).any()


@pytest.mark.parametrize("device", DEVICES)
def test_a15_nvfp4_global_scale_uses_the_magnitude(device):
    q = FORMATS["nvfp4"].encode(torch.tensor([[-6.0, 0.5] + [0.0] * 14], device=device))
    assert q.global_scale.item() == 448
    assert restore(q)[0, :2].tolist() == [-6.0, 0.5]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
def test_a17_nan_marks_its_mx_block_and_no_other(name, device):
    x = torch.ones(1, 64, device=device)
    x[0, 5] = NAN
    q = FORMATS[name].encode(x)
    assert q.scale[0, 0] == 0xFF
    assert restore(q)[0, :32].isnan().all()
    assert (restore(q)[0, 32:] == 1).all()


def test_nan_marks_its_nvfp4_block_and_stays_put_in_fp8():
    x = torch.ones(2, 64)
    x[0, 5] = NAN
    nvfp4 = restore(FORMATS["nvfp4"].encode(x))
    assert nvfp4[0, :16].isnan().all()
    assert nvfp4.isnan().sum() == 16
    assert torch.equal(nvfp4[1], x[1])
    for name in ("e4m3_tensor", "e4m3_row", "e4m3_block", "e5m2_block"):
        assert torch.equal(restore(FORMATS[name].encode(x)).isnan(), x.isnan()), name


@pytest.mark.parametrize("device", DEVICES)
def test_a19_a_tail_block_has_its_own_scale_and_keeps_the_length(device):
    x = torch.arange(33.0, device=device)[None]
    q = FORMATS["mxfp4"].encode(x)
    assert (q.scale.shape, q.data.shape, restore(q).shape) == ((1, 2), (1, 17), (1, 33))
    assert q.scale[0, 1] == 130
    assert restore(q)[0, 32] == 32


@pytest.mark.parametrize(("name", "rule"), RULES)
@pytest.mark.parametrize("columns", [1, 15, 33, 127, 130])
def test_a19_every_format_encodes_a_tail_as_if_padded_with_zeros(name, rule, columns):
    x = normal(130, columns)
    padded = torch.nn.functional.pad(x, (0, 256 - columns))
    for weights in (False, True):
        found = restore(FORMATS[name].encode(x, weights=weights, scale_rule=rule))
        wanted = restore(FORMATS[name].encode(padded, weights=weights, scale_rule=rule))
        assert torch.equal(found, wanted[:, :columns])


def test_scale_rules_on_one_block_each():
    amax = torch.tensor([6.0, 6.0000005, 7.0, 8.0, 3.5, 3.4999998, 0.0, NAN, INF])
    assert power_of_two_scale(amax, E2M1, "floor").tolist() == [127, 127, 127, 128, 126, 126, 0, 255, 253]
    assert power_of_two_scale(amax, E2M1, "ceil").tolist() == [127, 128, 128, 128, 127, 127, 0, 255, 254]
    assert power_of_two_scale(amax, E2M1, "even").tolist() == [127, 127, 128, 128, 127, 126, 0, 255, 253]
    assert power_of_two_scale(torch.tensor([448.0, 449.0, 496.0]), E4M3, "ceil").tolist() == [127, 128, 128]
    assert power_of_two_scale(torch.tensor([448.0, 495.9, 496.0]), E4M3, "even").tolist() == [127, 127, 128]


def test_ceil_never_clips_and_floor_does():
    x = normal(64, 256)
    for name, element in (("mxfp4", E2M1), ("mxfp8", E4M3)):
        largest = x.view(64, 8, 32).abs().amax(-1)
        ceil = from_e8m0(FORMATS[name].encode(x, scale_rule="ceil").scale)
        floor = from_e8m0(FORMATS[name].encode(x).scale)
        assert (largest <= element.largest * ceil).all()
        assert (largest > element.largest * ceil / 2).all()
        assert (largest > element.largest * floor).any()


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_error_on_normal_data_is_within_the_tolerance_and_near_it(name, rule):
    x = normal(256, 512)
    entry = FORMATS[name]
    for weights in (False, True):
        error = relative_rms(restore(entry.encode(x, weights=weights, scale_rule=rule)), x)
        assert entry.tolerance / 2 < error < entry.tolerance


def test_formats_order_by_error():
    x = normal(256, 512)
    errors = [relative_rms(restore(FORMATS[name].encode(x)), x) for name in ("bf16", "e4m3_block", "nvfp4", "mxfp4")]
    assert errors == sorted(errors)


block_data = st.tuples(
    st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**31), st.integers(-60, 60), st.floats(0.0, 4.0)
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(block_data, st.sampled_from(RULES), st.booleans())
def test_a_second_encoding_changes_nothing(data, pair, weights):
    rows, columns, seed, exponent, spread = data
    name, rule = pair
    entry = FORMATS[name]
    # Blocks differ by at most 2^8 in size: below E4M3's normal range an NVFP4 block scale is too coarse for this.
    sizes = torch.exp2(exponent + (spread * normal(rows, 1, seed=seed + 1)).clamp(-4, 4).round())
    once_coded = entry.encode(normal(rows, columns, seed=seed) * sizes, weights=weights, scale_rule=rule)
    once = restore(once_coded)
    twice_coded = entry.encode(once, weights=weights, scale_rule=rule)
    if once_coded.scale is None or once_coded.scale.dtype == torch.uint8 or rule == "ceil":
        twice = restore(twice_coded)
        assert torch.equal(twice, once) or (name == "nvfp4" and torch.allclose(twice, once, rtol=3e-7, atol=0))
    else:  # a float32 scale may move in its last place: amax = 448 * scale is itself rounded
        assert torch.equal(twice_coded.data, once_coded.data)
        torch.testing.assert_close(twice_coded.scale, once_coded.scale, rtol=2.5e-7, atol=0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(-100, 90), st.sampled_from(["e4m3_row", "mxfp8", "mxfp4", "nvfp4"]))
def test_a_power_of_two_passes_through(seed, exponent, name):
    x = normal(4, 96, seed=seed)
    scaled = restore(FORMATS[name].encode(x * 2.0**exponent))
    torch.testing.assert_close(scaled, restore(FORMATS[name].encode(x)) * 2.0**exponent, rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_and_extremes_stay_finite(name):
    entry = FORMATS[name]
    for value in (0.0, -0.0, 1e-45, 1e-38):
        assert restore(entry.encode(torch.full((3, 40), value))).isfinite().all(), value
    for value in (1e-20, 1e30):
        x = torch.full((3, 40), value)
        torch.testing.assert_close(restore(entry.encode(x)), x, rtol=0.2, atol=0)
    assert (restore(entry.encode(torch.zeros(3, 40))) == 0).all()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bf16"])
def test_infinity_saturates_and_does_not_turn_to_nan(name):
    x = torch.ones(1, 16)
    x[0, 3] = INF
    restored = restore(FORMATS[name].encode(x))
    assert not restored.isnan().any()
    assert restored[0, 3] > 1e38


def test_overflow_mode_reaches_the_elements():
    x = torch.tensor([[1.0] * 31 + [511.0]])  # floor keeps scale 1, so 511 lies above 464
    assert restore(FORMATS["mxfp8"].encode(x))[0, 31] == 448
    cut = FORMATS["mxfp8"].encode(x, overflow="nan")
    assert cut.overflow == "nan"
    assert restore(cut)[0, 31].isnan()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_stack_is_encoded_expert_by_expert(name, device, monkeypatch):
    x = (normal(5, 130, 200) * torch.tensor([1.0, 100.0, 0.0, 1e-3, 7.0])[:, None, None]).to(device)
    for part in (1 << 26, 2 * 130 * 200):
        monkeypatch.setattr(base, "MAX_PART_ELEMENTS", part)
        q = FORMATS[name].encode(x, weights=True)
        values = restore(q)
        for index in range(5):
            alone = FORMATS[name].encode(x[index], weights=True)
            assert_same(q.expert(index), alone)
            assert q.expert(index).shape == (130, 200)
            assert torch.equal(values[index], restore(alone))
        assert torch.equal(restore(q, torch.bfloat16), values.to(torch.bfloat16))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_in_parts_gives_the_bytes_of_the_whole(name, weights, monkeypatch):
    x = normal(300, 200) * torch.exp2(normal(300, 1, seed=1).round() * 4)
    whole = FORMATS[name].encode(x, weights=weights)
    values = restore(whole)
    monkeypatch.setattr(base, "MAX_PART_ELEMENTS_CPU", 7 * 200)
    assert_same(FORMATS[name].encode(x, weights=weights), whole)
    assert torch.equal(restore(whole), values)
    assert torch.equal(restore(whole, torch.bfloat16), values.to(torch.bfloat16))


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64), (0, 3, 64)])
@pytest.mark.parametrize("name", FORMATS)
def test_no_rows_is_no_fault(name, shape):
    q = FORMATS[name].encode(torch.zeros(shape))
    assert restore(q).shape == shape
    assert restore(q, torch.bfloat16).dtype == torch.bfloat16


def test_block_scales_are_1x128_or_128x128():
    x = normal(3, 300, 520)
    assert FORMATS["e4m3_block"].encode(x).scale.shape == (3, 300, 5)
    q = FORMATS["e4m3_block"].encode(x, weights=True)
    assert q.scale.shape == (3, 3, 5)
    assert q.scale[1, 2, 4] == x[1, 256:, 512:].abs().max() / torch.tensor(448.0)
    rounded = FORMATS["e4m3_block"].encode(x, weights=True, scale_rule="ceil").scale
    assert (rounded.frexp().mantissa == 0.5).all()
    assert ((rounded >= q.scale) & (rounded < 2 * q.scale)).all()


def test_bf16_is_the_identity():
    x = normal(3, 5).bfloat16()
    q = FORMATS["bf16"].encode(x)
    assert q.data is x
    assert restore(q, torch.bfloat16) is x


def test_bf16_input_gives_the_same_as_its_float32():
    x = normal(130, 200).bfloat16()
    for entry in FORMATS.values():
        assert_same(entry.encode(x, weights=True), entry.encode(x.float(), weights=True))


def test_nvfp4_scales_follow_their_formula():
    x = normal(4, 64)
    q = FORMATS["nvfp4"].encode(x)
    amax = x.view(4, 4, 16).abs().amax(-1)
    assert q.global_scale == torch.tensor(2688.0) / x.abs().max()
    ideal = amax / 6 * q.global_scale
    assert ((from_e4m3(q.scale) / ideal - 1).abs() <= 1 / 16).all()
    swapped = replace(q, global_scale=q.global_scale * 2)
    torch.testing.assert_close(restore(swapped) * 2, restore(q))


def test_requests_no_format_can_meet_are_refused():
    x = normal(2, 32)
    with pytest.raises(ValueError, match="mxfp4: scale_rule 'none' is not one of floor, ceil, even"):
        FORMATS["mxfp4"].encode(x, scale_rule="none")
    with pytest.raises(ValueError, match="E2M1 has no NaN"):
        FORMATS["nvfp4"].encode(x, overflow="nan")
    with pytest.raises(ValueError, match="overflow 'wrap'"):
        FORMATS["e4m3_row"].encode(x, overflow="wrap")
    with pytest.raises(ValueError, match="float64"):
        FORMATS["bf16"].encode(x.double())
    with pytest.raises(ValueError, match=r"shape \(32,\)"):
        FORMATS["mxfp8"].encode(x[0])
    with pytest.raises(ValueError, match="stack"):
        FORMATS["mxfp8"].encode(x).expert(0)
    with pytest.raises(ValueError, match="e2m1"):
        format_name("e2m1", "row")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (128, 128), (129, 257), (130, 200), (7, 2880)])
def test_bytes_agree_with_the_spec(recipe, shape):
    precision = PRECISIONS[recipe]
    x = normal(*shape)
    for part, weights in (("weights", True), ("activations", False)):
        number, name = getattr(precision, part), getattr(RECIPES[recipe], part)
        assert format_name(number.format, number.granularity) == name
        assert FORMATS[name].encode(x, weights=weights).nbytes == tensor_bytes(number, *shape, weights=weights)


def test_recipes_are_those_of_the_spec_with_rules_their_formats_know():
    assert list(RECIPES) == list(PRECISIONS)
    for name, precision in PRECISIONS.items():
        assert precision.scale_rule in FORMATS[RECIPES[name].weights].scale_rules


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "rule"), RULES)
def test_cpu_and_gpu_agree_to_the_bit(name, rule):
    x = normal(3, 130, 200) * torch.exp2(normal(3, 130, 1, seed=1).round() * 8)
    x[0, 0, 0], x[1, 1, 1], x[2, 2, 2] = NAN, INF, 1e-40
    for weights in (False, True):
        here = FORMATS[name].encode(x, weights=weights, scale_rule=rule)
        there = FORMATS[name].encode(x.cuda(), weights=weights, scale_rule=rule)
        assert_same(there, here)
        torch.testing.assert_close(restore(there).cpu(), restore(here), rtol=0, atol=0, equal_nan=True)
        assert_same(here.to("cuda"), there)
