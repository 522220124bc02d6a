"""Gradients of the layer: gradcheck in float64, plain autograd of the reference, and what the formats explain."""

import pytest
import torch

from kernels.activation import Activation
from kernels.backward import TRAIN_RECIPES, TrainRecipe, router_weights, train_layer
from kernels.backward.activation import activate, activation_backward
from kernels.backward.products import bias_grad, dgrad, encode_gradients, encode_inputs, prepare_matrix, wgrad
from kernels.formats import FORMATS
from kernels.grouped_gemm.wgrad import grouped_wgrad, wgrad_backend
from kernels.moe import moe_layer, prepare_weights
from kernels.reference import moe_reference
from kernels.routing import ROUTERS
from kernels.scaling import Scaling

ACTIVATIONS = [
    Activation(),
    Activation(interleaved=True),
    Activation("clamped_swiglu", limit=0.8),
    Activation("clamped_swiglu", limit=0.8, interleaved=True),
]
GPT_OSS = Activation("clamped_swiglu", interleaved=True)


def make_layer(num_tokens, *, num_experts=5, top_k=3, hidden=12, width=8, dtype=torch.float64, seed=0, shared=False):
    """x, ids with drops and an expert without tokens, weights, and the named weight tensors."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    weights, ids = torch.rand(num_tokens, num_experts - 1, generator=generator).topk(top_k, dim=1)
    ids[::4, 1] = -1
    tensors = {
        "w13_E2IH": normal(num_experts, 2 * width, hidden, scale=hidden**-0.5),
        "w2_EHI": normal(num_experts, hidden, width, scale=width**-0.5),
        "bias13": normal(num_experts, 2 * width, scale=0.1),
        "bias2": normal(num_experts, hidden, scale=0.1),
    }
    if shared:
        tensors |= {
            "shared_w13": normal(1, 2 * width, hidden, scale=hidden**-0.5),
            "shared_w2": normal(1, hidden, width, scale=width**-0.5),
        }
    return normal(num_tokens, hidden), ids.int(), weights.to(dtype), tensors


def gradients(forward, x, weights, tensors, upstream):
    """Gradients of every tensor by name under ``upstream``, from leaves made here."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in ({"x": x, "weights": weights} | tensors).items()}
    y = forward(leaves["x"], leaves)
    y.backward(upstream.to(y.dtype))
    return {name: leaf.grad for name, leaf in leaves.items()}


def ours(ids, **options):
    def forward(x, leaves):
        tensors = {name: t for name, t in leaves.items() if name not in ("x", "weights")}
        return train_layer(x, ids, leaves["weights"], **tensors, **options)

    return forward


def reference(ids, **options):
    def forward(x, leaves):
        named = {"w13_E2IH": "w13", "w2_EHI": "w2"}
        tensors = {named.get(name, name): t for name, t in leaves.items() if name not in ("x", "weights")}
        return moe_reference(x, ids, leaves["weights"], **tensors, **options)

    return forward


def distance(value, expected):
    return float((value.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("weight_on", ["output", "input"])
def test_gradcheck_of_the_whole_layer(activation, weight_on):
    x, ids, weights, tensors = make_layer(3, num_experts=3, top_k=2, hidden=4, width=3, shared=True)
    names = list(tensors)

    def layer(x, weights, *values):
        named = dict(zip(names, values, strict=True))
        return train_layer(x, ids, weights, **named, precision="exact", activation=activation, weight_on=weight_on)

    inputs = [t.requires_grad_() for t in (x, weights, *tensors.values())]
    assert torch.autograd.gradcheck(layer, inputs)


@pytest.mark.parametrize("weight_on", ["output", "input"])
@pytest.mark.parametrize("activation", [Activation(), GPT_OSS], ids=str)
def test_exact_in_float32_equals_autograd_of_the_reference(weight_on, activation):
    x, ids, weights, tensors = make_layer(41, hidden=40, width=24, dtype=torch.float32, shared=True)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    options = {"activation": activation, "weight_on": weight_on}
    got = gradients(ours(ids, precision="exact", **options), x, weights, tensors, upstream)
    expected = gradients(reference(ids, **options), x, weights, tensors, upstream)
    for name, grad in expected.items():
        assert distance(got[name], grad) < 2e-6, name
    assert not got["w13_E2IH"][-1].any()
    assert not got["bias2"][-1].any()
    assert not got["weights"][ids < 0].any()


@pytest.mark.parametrize("precision", [name for name in TRAIN_RECIPES if name != "exact"])
def test_gradients_are_off_by_what_the_formats_explain(precision):
    """FP8 must also be off by more than bf16, or nothing was rounded to it."""
    x, ids, weights, tensors = make_layer(70, hidden=160, width=96, dtype=torch.float32)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    got = gradients(
        ours(ids, precision=precision, activation=GPT_OSS),
        x.bfloat16(), weights, {n: t.bfloat16() for n, t in tensors.items()}, upstream,
    )  # fmt: skip
    expected = gradients(reference(ids, activation=GPT_OSS), x.bfloat16().float(), weights,
                         {n: t.bfloat16().float() for n, t in tensors.items()}, upstream)  # fmt: skip
    errors = {name: distance(got[name], grad) for name, grad in expected.items()}
    recipe = TRAIN_RECIPES[precision]
    formats = [FORMATS[f].tolerance for f in (recipe.weights, recipe.activations, recipe.gradients)]
    limit = 2 * sum(4 * t * t for t in formats) ** 0.5 + 8 * 2**-8
    assert all(error <= limit for error in errors.values()), (limit, errors)
    if precision != "bf16":
        assert errors["w13_E2IH"] > 0.01
        assert errors["x"] > 0.01


@pytest.mark.parametrize("precision", ["bf16", "fp8_tensor", "fp8_row", "fp8_block", "mxfp8"])
def test_forward_is_the_inference_layer_bit_for_bit(precision):
    x, ids, weights, tensors = make_layer(19, hidden=130, width=40, dtype=torch.bfloat16, shared=True)
    how = {"precision": precision, "activation": GPT_OSS}
    bias = {name: tensors[name] for name in ("bias13", "bias2")}
    experts = prepare_weights(tensors["w13_E2IH"], tensors["w2_EHI"], **how, **bias)
    shared = prepare_weights(tensors["shared_w13"], tensors["shared_w2"], **how)
    expected = moe_layer(x, ids, weights.float(), experts, shared=shared)
    assert torch.equal(train_layer(x, ids, weights.float(), **tensors, **how), expected)


@pytest.mark.parametrize("precision", ["fp8_tensor", "fp8_row", "fp8_block", "mxfp8"])
def test_fp8_products_are_those_of_the_decoded_operands(precision):
    """wgrad and dgrad by their definition: encode along the sum, decode, multiply in float64."""
    recipe, scaling = TRAIN_RECIPES[precision], Scaling()
    generator = torch.Generator().manual_seed(2)
    offsets = torch.tensor([0, 150, 150, 151, 190])
    rows, grads = (torch.randn(195, n, generator=generator).bfloat16() for n in (140, 260))
    # Magnitudes differ from block to block, so that a scale in another's place shows.
    w = (torch.randn(4, 260, 140, generator=generator) * torch.linspace(1, 30, 260)[:, None]).bfloat16()
    matrix = prepare_matrix(w, name="w", recipe=recipe, scaling=scaling)
    inputs = encode_inputs(rows, matrix, recipe=recipe, scaling=scaling)
    outer = encode_gradients(grads, matrix, recipe=recipe, scaling=scaling)
    dx, dw = dgrad(outer, offsets, matrix, recipe=recipe), wgrad(outer, inputs, offsets, recipe=recipe)
    assert dw.dtype == torch.float32

    def coded(x, name, weights=False):
        entry = FORMATS[name]
        return entry.decode(entry.encode(x.contiguous(), weights=weights)).double()

    for e in range(4):
        part = slice(offsets[e], offsets[e + 1])
        if offsets[e] == offsets[e + 1]:
            assert not dw[e].any()
            continue
        if recipe.weights.endswith("_tensor"):
            g, x = coded(grads, recipe.gradients)[part].T, coded(rows, recipe.activations)[part].T
        else:
            g, x = coded(grads[part].T, recipe.gradients), coded(rows[part].T, recipe.activations)
        assert distance(dw[e], g @ x.T) < 1e-5
        wide = coded(grads, recipe.gradients)[part] @ coded(w[e].T, recipe.weights, weights=True).T
        assert distance(dx[part], wide) <= 2 * FORMATS["bf16"].tolerance
    assert not dx[190:].any()


@pytest.mark.parametrize("precision", ["exact", "bf16", "fp8_block", "fp8_tensor_delayed"])
def test_no_tokens_and_all_dropped(precision):
    for num_tokens, drop in ((0, False), (5, True)):
        x, ids, weights, tensors = make_layer(num_tokens, dtype=torch.float32)
        if drop:
            ids.fill_(-1)
        got = gradients(ours(ids, precision=precision), x.bfloat16(), weights, tensors, torch.ones(x.shape))
        assert got["x"].shape == x.shape
        assert all(torch.count_nonzero(grad) == 0 for grad in got.values())


def test_master_weights_in_float32_get_float32_gradients():
    x, ids, weights, tensors = make_layer(20, dtype=torch.float32)
    got = gradients(ours(ids, precision="fp8_block"), x.bfloat16(), weights, tensors, torch.ones(x.shape))
    assert got["w13_E2IH"].dtype == torch.float32
    assert got["x"].dtype == torch.bfloat16
    # A float32 sum that was rounded to bf16 on the way would be unchanged by another rounding.
    assert not torch.equal(got["w2_EHI"].bfloat16().float(), got["w2_EHI"])


def test_delayed_scaling_follows_and_gives_gradients_as_good_as_current():
    x, ids, weights, tensors = make_layer(70, hidden=160, width=96, dtype=torch.float32)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    scaling = Scaling("delayed", 4)
    options = {"precision": "fp8_tensor_delayed", "scaling": scaling}
    for _ in range(3):
        got = gradients(ours(ids, **options), x.bfloat16(), weights, tensors, upstream)
    current = gradients(ours(ids, precision="fp8_tensor"), x.bfloat16(), weights, tensors, upstream)
    # The same data in every step: the past's scale is the current one.
    assert all(torch.equal(got[name], grad) for name, grad in current.items())
    assert set(scaling.histories) == {
        f"experts.{matrix}.{what}" for matrix in ("w13", "w2") for what in ("weights", "inputs", "gradients")
    }


def test_activation_backward_worked_example_and_autograd():
    h = torch.tensor([[1.0, 2.0, 10.0, 1.0]])
    got = activation_backward(torch.ones(1, 2), h, GPT_OSS)
    assert got.flatten().tolist() == pytest.approx([3.2033, 0.8458, 0.0, 6.99995], abs=1e-4)
    for activation in ACTIVATIONS:
        h = torch.randn(9, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        grads = torch.randn(9, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        activate(h, activation).backward(grads)
        assert distance(activation_backward(grads, h.detach(), activation), h.grad) < 1e-12


ROUTED = {
    "softmax_topk": {"norm_topk": True, "routed_scaling": 1.5},
    "topk_softmax": {"routed_scaling": 1.5},
    "sigmoid_topk": {"norm_topk": False},
    "sigmoid_group": {"norm_topk": True, "routed_scaling": 2.5},
    "softmax_group": {"norm_topk": False, "routed_scaling": 16.0},
    "switch": {},
    "batch_prioritized": {},
    "expert_choice": {},
    "hash": {},
    "random": {},
}
DRAWN = {"random": {"seed": 1}, "hash": {"token_ids": torch.arange(12)}}


@pytest.mark.parametrize("kind", ROUTED)
def test_router_weights_equal_the_router_and_have_its_gradient(kind):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(12, 8, generator=generator)
    routing = ROUTERS[kind](logits, top_k=3, **ROUTED[kind], **DRAWN.get(kind, {}))
    if kind in ("switch", "batch_prioritized", "expert_choice"):
        assert (routing.ids < 0).any()
    got = router_weights(logits, routing.ids, kind=kind, **ROUTED[kind])
    torch.testing.assert_close(got, routing.weights, rtol=1e-5, atol=1e-7)
    leaf = logits.double().requires_grad_()
    if kind in DRAWN:
        assert not router_weights(leaf, routing.ids, kind=kind).requires_grad
    else:
        assert torch.autograd.gradcheck(lambda x: router_weights(x, routing.ids, kind=kind, **ROUTED[kind]), leaf)


def test_bias_grad_leaves_rows_without_an_expert_out():
    got = bias_grad(torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([0, 1, 1, 3]))
    assert got.tolist() == [[1.0], [0.0], [6.0]]


def test_a_product_by_ones_sums_bias_gradients_too():
    """What a GPU does instead, where additions into one place come in any order."""
    grads, offsets = (
        torch.randn(50, 7, generator=torch.Generator().manual_seed(6)).bfloat16(),
        torch.tensor([0, 20, 20, 45]),
    )
    ones = torch.ones(50, 1).bfloat16()
    summed = grouped_wgrad(grads, ones, offsets, grads_format="bf16", rows_format="bf16")[..., 0]
    torch.testing.assert_close(summed, bias_grad(grads, offsets), rtol=1e-5, atol=1e-5)


def test_bad_requests_name_the_field():
    with pytest.raises(ValueError, match="too narrow to train"):
        TrainRecipe("x", "mxfp4", "bf16", "bf16")
    with pytest.raises(ValueError, match="delayed wants tensor-wide scales, not e4m3_block"):
        TrainRecipe("x", "e4m3_block", "e4m3_tensor", "e5m2_tensor", scaling="delayed")
    with pytest.raises(ValueError, match="exact goes with exact alone"):
        TrainRecipe("x", "exact", "bf16", "bf16")
    with pytest.raises(ValueError, match="cannot be trained in"):
        train_layer(*[torch.ones(1, 1)] * 5, precision="nvfp4")
    encoded = FORMATS["e4m3_block"].encode(torch.ones(2, 4))
    offsets = torch.tensor([0, 2])
    with pytest.raises(ValueError, match="no scales along"):
        grouped_wgrad(torch.ones(2, 3), encoded, offsets, grads_format="e5m2_block", rows_format="e4m3_block")
    with pytest.raises(ValueError, match=r"want \[M, N\], \[M, K\]"):
        grouped_wgrad(torch.ones(2, 3), torch.ones(3, 3), offsets, grads_format="bf16", rows_format="bf16")
    with pytest.raises(ValueError, match="router: 'cosine2' has no gradient"):
        router_weights(torch.ones(1, 2), torch.zeros(1, 1, dtype=torch.int32), kind="cosine2")
    with pytest.raises(ValueError, match="no wgrad for mxfp8 x mxfp8; use torch"):
        wgrad_backend(torch.device("cpu"), "triton", "mxfp8", "mxfp8")
