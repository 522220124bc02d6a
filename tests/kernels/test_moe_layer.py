"""The whole expert layer against the float32 reference: precisions, token counts, drops, shared expert, biases."""

import warnings

import pytest
import torch

from kernels.activation import Activation
from kernels.formats import FORMATS
from kernels.moe import expert_mlp, math_path, moe_layer, prepare_weights
from kernels.permute import sort_by_expert
from kernels.recipes import RECIPES, Recipe
from kernels.reference import moe_reference

E, K, H, INTER = 8, 2, 64, 32


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors this small only lose by a second thread, and far more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_layer(num_tokens, *, num_experts=E, top_k=K, seed=0):
    """(x, ids, weights, w13, w2), scaled so that every stage has values around 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, H, generator=generator).bfloat16()
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    weights, ids = scores.topk(top_k, dim=1)
    w13 = torch.randn(num_experts, 2 * INTER, H, generator=generator) / H**0.5
    w2 = torch.randn(num_experts, H, INTER, generator=generator) / INTER**0.5
    return x, ids.int(), weights, w13.bfloat16(), w2.bfloat16()


def rms(value, expected):
    return float((value.float() - expected).norm() / expected.norm())


def allowed(precision):
    """Two GEMMs in a row, each with the error of both its operands, and BF16 between the stages."""
    recipe = RECIPES[precision]
    return 2 * (FORMATS[recipe.weights].tolerance + FORMATS[recipe.activations].tolerance)


@pytest.mark.parametrize("precision", RECIPES)
def test_layer_equals_reference_within_its_formats(precision):
    x, ids, weights, w13, w2 = make_layer(48)
    experts = prepare_weights(w13, w2, precision=precision)
    y = moe_layer(x, ids, weights, experts)
    expected = moe_reference(x, ids, weights, w13, w2)
    assert y.shape == x.shape
    assert y.dtype == torch.bfloat16
    assert rms(y, expected) <= allowed(precision)
    assert rms(moe_layer(x, (ids + 1) % E, weights, experts), expected) > 1.2


def test_errors_are_ordered_by_precision():
    x, ids, weights, w13, w2 = make_layer(64)
    expected = moe_reference(x, ids, weights, w13, w2)
    names = ("bf16", "fp8_block", "nvfp4_w4a16", "mxfp4_w4a16")
    errors = [rms(moe_layer(x, ids, weights, prepare_weights(w13, w2, precision=name)), expected) for name in names]
    assert errors == sorted(errors)


@pytest.mark.parametrize("precision", RECIPES)
def test_c01_zero_tokens(precision):
    x, ids, weights, w13, w2 = make_layer(0)
    experts = prepare_weights(w13, w2, precision=precision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = moe_layer(x, ids, weights, experts, shared=prepare_weights(w13[:1], w2[:1], precision=precision))
        dropped = moe_layer(x.new_ones(3, H), torch.full((3, K), -1), torch.zeros(3, K), experts)
    assert y.shape == (0, H)
    assert y.dtype == torch.bfloat16
    assert dropped.tolist() == [[0.0] * H] * 3


@pytest.mark.parametrize("precision", ["bf16", "fp8_block", "mxfp4_w4a16"])
def test_c14_every_token_count(precision):
    _, _, _, w13, w2 = make_layer(1, top_k=8)
    experts = prepare_weights(w13, w2, precision=precision)
    for num_tokens in range(1, 131):
        x, ids, weights, _, _ = make_layer(num_tokens, top_k=8, seed=num_tokens)
        y = moe_layer(x, ids, weights, experts)
        assert rms(y, moe_reference(x, ids, weights, w13, w2)) <= allowed(precision), num_tokens


def test_a13_a_zero_expert_in_nvfp4_does_not_poison_the_layer():
    x, ids, weights, w13, w2 = make_layer(32)
    w13[3], w2[3] = 0, 0
    assert (ids == 3).any()
    for precision in ("nvfp4", "nvfp4_w4a16"):
        experts = prepare_weights(w13, w2, precision=precision)
        assert experts.w13.global_scale.isfinite().all()
        assert FORMATS["nvfp4"].decode(experts.w13.expert(3)).abs().max() == 0
        y = moe_layer(x, ids, weights, experts)
        assert y.isfinite().all()
        assert rms(y, moe_reference(x, ids, weights, w13, w2)) <= allowed(precision)


@pytest.mark.parametrize("precision", ["bf16", "mxfp4_w4a16", "mxfp4_w4a8"])
def test_gpt_oss_layer_with_interleaved_rows_and_biases(precision):
    x, ids, weights, w13, w2 = make_layer(40, top_k=4)
    bias13, bias2 = torch.randn(E, 2 * INTER).bfloat16(), torch.randn(E, H).bfloat16()
    activation = Activation(kind="clamped_swiglu", alpha=1.702, limit=7.0, interleaved=True)
    extra = {"bias13": bias13, "bias2": bias2, "activation": activation}
    experts = prepare_weights(w13, w2, precision=precision, **extra)
    expected = moe_reference(x, ids, weights, w13, w2, **extra)
    assert rms(moe_layer(x, ids, weights, experts), expected) <= allowed(precision)
    halves = Activation(kind="clamped_swiglu")
    wrong = prepare_weights(w13, w2, precision=precision, bias13=bias13, bias2=bias2, activation=halves)
    assert rms(moe_layer(x, ids, weights, wrong), expected) > 0.3


def test_weight_on_the_input_and_a_shared_expert():
    x, ids, weights, w13, w2 = make_layer(24, top_k=1)
    _, _, _, shared_w13, shared_w2 = make_layer(1, num_experts=1, top_k=1, seed=9)
    experts = prepare_weights(w13, w2, precision="bf16")
    shared = prepare_weights(shared_w13, shared_w2, precision="bf16")
    y = moe_layer(x, ids, weights, experts, weight_on="input", shared=shared)
    expected = moe_reference(x, ids, weights, w13, w2, weight_on="input", shared_w13=shared_w13, shared_w2=shared_w2)
    assert rms(y, expected) <= allowed("bf16")
    on_output = moe_layer(x, ids, weights, experts, shared=shared)
    assert rms(on_output, expected) > 0.05


@pytest.mark.parametrize("weight_on", ["output", "input"])
def test_dropped_pairs_add_nothing(weight_on):
    x, ids, weights, w13, w2 = make_layer(16)
    ids[::3, 1] = -1
    ids[5] = -1
    y = moe_layer(x, ids, weights, prepare_weights(w13, w2, precision="bf16"), weight_on=weight_on)
    assert rms(y, moe_reference(x, ids, weights, w13, w2, weight_on=weight_on)) <= allowed("bf16")
    assert y[5].abs().sum() == 0


def test_ranks_that_hold_a_part_of_the_experts_sum_to_the_layer():
    x, ids, weights, w13, w2 = make_layer(20)
    parts = []
    for first in (0, 4):
        mine = (ids >= first) & (ids < first + 4)
        local = torch.where(mine, ids - first, -1)
        experts = prepare_weights(w13[first : first + 4], w2[first : first + 4], precision="bf16")
        parts.append(moe_layer(x, local, weights, experts).float())
    assert rms(sum(parts), moe_reference(x, ids, weights, w13, w2)) <= allowed("bf16")


def test_rows_of_an_fp8_dispatch_enter_encoded():
    x, ids, _, w13, w2 = make_layer(16, top_k=1)
    experts = prepare_weights(w13, w2, precision="fp8_block")
    perm = sort_by_expert(ids, E)
    rows = x[perm.order]
    encoded = FORMATS["e4m3_block"].encode(rows)
    assert torch.equal(expert_mlp(encoded, perm.offsets, experts), expert_mlp(rows, perm.offsets, experts))


def test_bytes_count_scales_and_a_recipe_by_hand_is_taken():
    _, _, _, w13, w2 = make_layer(1)
    assert prepare_weights(w13, w2, precision="bf16").nbytes == 2 * 3 * E * H * INTER
    assert prepare_weights(w13, w2, precision="mxfp4_w4a16").nbytes == 3 * E * H * INTER * 17 // 32
    mine = Recipe("mine", "e5m2_row", "e4m3_row")
    assert prepare_weights(w13, w2, precision=mine, scale_rule="ceil").w2.scale_rule == "ceil"


def test_bad_input_is_refused():
    x, ids, weights, w13, w2 = make_layer(4)
    experts = prepare_weights(w13, w2, precision="bf16")
    with pytest.raises(ValueError, match="precision: 'fp7'"):
        prepare_weights(w13, w2, precision="fp7")
    with pytest.raises(ValueError, match="does not fit w2"):
        prepare_weights(w13[:, 1:], w2, precision="bf16")
    with pytest.raises(ValueError, match="bias2"):
        prepare_weights(w13, w2, precision="bf16", bias2=torch.zeros(E, H + 1))
    with pytest.raises(ValueError, match="weight_on: 'both'"):
        moe_layer(x, ids, weights, experts, weight_on="both")
    with pytest.raises(ValueError, match=r"want \[T, K\]"):
        moe_layer(x, ids[:3], weights[:3], experts)
    with pytest.raises(ValueError, match="shared: 8 experts"):
        moe_layer(x, ids, weights, experts, shared=experts)


def test_math_path_says_what_is_executed():
    hopper = {"device_type": "cuda", "capability": (9, 0)}
    assert math_path("bf16", device_type="cpu") == "native"
    assert math_path("fp8_block", device_type="cpu") == "emulated"
    assert math_path("nvfp4_w4a16", device_type="cpu") == "upcast"
    assert math_path("mxfp4_w4a8", device_type="cpu") == "emulated"
    assert math_path("fp8_block", **hopper) == "native"
    assert math_path("fp8_block", **hopper, backend="torch") == "emulated"
    assert math_path("mxfp4_w4a16", **hopper) == "upcast"
    assert math_path("fp8_block", device_type="cuda", capability=(8, 0)) == "emulated"
    with pytest.raises(ValueError, match=r"needs compute capability 8\.9"):
        math_path("fp8_block", device_type="cuda", capability=(8, 0), backend="triton")
    with pytest.raises(ValueError, match=r"needs compute capability 10\.0"):
        math_path("nvfp4", **hopper, backend="triton")
