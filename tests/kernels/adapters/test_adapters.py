"""Adapters to other libraries: what they refuse and why, the layouts they hand over, and the layer that comes out."""

import sys
from dataclasses import replace

import pytest
import torch

from kernels.activation import Activation
from kernels.adapters import ADAPTERS, LayerRequest, PeerBroken, math_path, refusal, version
from kernels.adapters.base import _copy_of, is_installed, load
from kernels.adapters.deep_gemm import GROUP, pad_groups
from kernels.adapters.layout import ordered
from kernels.adapters.tutel import critical_data
from kernels.formats import FORMATS
from kernels.moe import moe_layer, prepare_weights
from kernels.recipes import RECIPES
from kernels.reference import moe_reference
from tests.kernels.adapters import stand_ins

HOPPER = {"device_type": "cuda", "capability": (9, 0)}
CLAMPED = Activation(kind="clamped_swiglu", interleaved=True)
PLAIN = Activation()
EXPERTS, HIDDEN, WIDTH, TOP_K = 5, 256, 128, 2


def request(precision="bf16", activation=PLAIN, **changes):
    fields = {"num_experts": EXPERTS, "hidden": HIDDEN, "intermediate": WIDTH, "top_k": TOP_K}
    return LayerRequest(**(fields | changes), recipe=RECIPES[precision], activation=activation)


def make_experts(precision, activation, *, bias=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator) / HIDDEN**0.5
    w2 = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator) / WIDTH**0.5
    biases = {}
    if bias:
        biases = {"bias13": torch.randn(EXPERTS, 2 * WIDTH, generator=generator).bfloat16(),
                  "bias2": torch.randn(EXPERTS, HIDDEN, generator=generator).bfloat16()}  # fmt: skip
    return prepare_weights(w13.bfloat16(), w2.bfloat16(), precision=precision, activation=activation, **biases)


def make_tokens(num_tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, HIDDEN, generator=generator).bfloat16()
    weights, ids = torch.rand(num_tokens, EXPERTS - 1, generator=generator).topk(TOP_K, dim=1)
    return x, ids.int(), weights


def deviation(y, x, ids, weights, experts):
    """Against float32 with the very weights that were encoded, so that only activations are rounded."""
    w13, w2 = (FORMATS[w.format].decode(w) for w in (experts.w13, experts.w2))
    expected = moe_reference(
        x, ids, weights, w13, w2, bias13=experts.bias13, bias2=experts.bias2, activation=experts.activation
    )
    return float((y.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", [name for name, peer in ADAPTERS.items() if not is_installed(peer.package)])
def test_a_peer_that_is_not_installed_says_how_to_get_it(name):
    precision = "fp8_block" if name == "deep_gemm" else "bf16"
    reason = refusal(ADAPTERS[name], request(precision), **HOPPER)
    assert reason.startswith(f"{name} is not installed; get it with: ")
    assert len(reason) > len(f"{name} is not installed; get it with: pip ")


def test_a_precision_that_a_peer_lacks_is_refused_first():
    for peer in ADAPTERS.values():
        assert "nvfp4 x nvfp4" in refusal(peer, request("nvfp4"), device_type="cpu", capability=None)


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("torch", request(hidden=250), "16 bytes"),
        ("torch", request(weight_on="input"), "not its input"),
        ("deep_gemm", request("fp8_block", intermediate=2880), "whole blocks of 128"),
        ("deep_gemm", request("fp8_block", has_bias=True), "no bias"),
        ("triton_kernels", request(has_dropped=True), "dropped"),
        ("vllm", request("fp8_block", hidden=2880), "groups of 128"),
        ("vllm", request("fp8_block", CLAMPED), "", ),
        ("vllm", request("fp8_block", Activation(kind="clamped_swiglu")), "interleaved"),
        ("vllm", request(activation=Activation(kind="clamped_swiglu", limit=5.0)), "limit 7.0"),
        ("vllm", request(weight_on="input"), "one expert a token"),
        ("sglang", request("fp8_block", Activation(interleaved=True)), "stacked"),
        ("flashinfer", request(has_dropped=True), "no pair dropped"),
        ("transformer_engine", request(hidden=250), "divide by 8"),
        ("tutel", request(has_dropped=True), "dropped"),
    ],
)  # fmt: skip
def test_limits_name_what_is_wrong(name, asked, words):
    reason = ADAPTERS[name].limits(asked)
    assert (reason is None) == (words == "")
    assert words in (reason or "")


def test_device_and_capability_are_checked():
    torch_peer = ADAPTERS["torch"]
    assert refusal(torch_peer, request(), **HOPPER) is None
    assert "9.0" in refusal(torch_peer, request(), device_type="cuda", capability=(8, 0))
    assert "not on cpu" in refusal(torch_peer, request(), device_type="cpu", capability=None)
    assert refusal(replace(torch_peer, devices=("cpu",)), request(), device_type="cpu", capability=None) is None


LAYERS = [
    ("torch", "bf16", PLAIN, False), ("torch", "bf16", CLAMPED, True),
    ("deep_gemm", "fp8_block", PLAIN, False), ("deep_gemm", "fp8_block", CLAMPED, False),
    *(("triton_kernels", p, PLAIN, False) for p in ("bf16", "mxfp4_w4a16")),
    *(("triton_kernels", p, CLAMPED, True) for p in ("bf16", "mxfp4_w4a16")),
    ("triton_kernels", "bf16", Activation(interleaved=True), True),
    *(("vllm", p, PLAIN, False) for p in ("bf16", "fp8_tensor", "fp8_row", "fp8_block")),
    ("vllm", "bf16", CLAMPED, True), ("vllm", "fp8_row", CLAMPED, True),
    ("vllm", "bf16", Activation(interleaved=True), True), ("vllm", "fp8_row", Activation(interleaved=True), False),
    *(("sglang", p, PLAIN, False) for p in ("bf16", "fp8_tensor", "fp8_row", "fp8_block")),
    ("sglang", "bf16", CLAMPED, True), ("sglang", "bf16", Activation(kind="clamped_swiglu"), True),
    ("flashinfer", "bf16", PLAIN, False), ("flashinfer", "fp8_block", PLAIN, False),
    ("flashinfer", "bf16", CLAMPED, True),
    ("transformer_engine", "bf16", PLAIN, False), ("transformer_engine", "bf16", CLAMPED, True),
    ("tutel", "bf16", PLAIN, False), ("tutel", "bf16", CLAMPED, True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "precision", "activation", "bias"), LAYERS)
def test_the_layer_through_a_peer_is_the_layer(name, precision, activation, bias, monkeypatch):
    stand_ins.install(monkeypatch)
    experts = make_experts(precision, activation, bias=bias)
    asked = request(precision, activation, has_bias=bias)
    assert ADAPTERS[name].limits(asked) is None
    call = ADAPTERS[name].prepare(experts, asked)
    x, ids, weights = make_tokens(37)
    y = call(x, ids, weights)
    assert y.dtype == torch.bfloat16
    # The stand-ins leave activations in BF16 where the peer would quantise them inside.
    quantised = name == "deep_gemm"
    assert deviation(y, x, ids, weights, experts) < (0.06 if quantised else 0.01)


@pytest.mark.parametrize("name", ["torch", "deep_gemm", "triton_kernels", "tutel"])
@pytest.mark.parametrize("num_tokens", [0, 1, 300])
def test_any_number_of_tokens(name, num_tokens, monkeypatch):
    stand_ins.install(monkeypatch)
    precision = "fp8_block" if name == "deep_gemm" else "bf16"
    experts = make_experts(precision, PLAIN)
    x, ids, weights = make_tokens(num_tokens)
    y = ADAPTERS[name].prepare(experts, request(precision))(x, ids, weights)
    assert y.shape == x.shape
    if num_tokens:
        assert deviation(y, x, ids, weights, experts) < 0.06


@pytest.mark.parametrize("name", ["torch", "deep_gemm"])
def test_dropped_pairs_add_nothing(name, monkeypatch):
    stand_ins.install(monkeypatch)
    precision = "fp8_block" if name == "deep_gemm" else "bf16"
    experts = make_experts(precision, PLAIN)
    x, ids, weights = make_tokens(24)
    ids[::3, 1], ids[5] = -1, -1
    call = ADAPTERS[name].prepare(experts, request(precision, has_dropped=True))
    y = call(x, ids, torch.where(ids < 0, 0.0, weights))
    assert deviation(y, x, ids, weights, experts) < 0.06
    assert not y[5].any()


def test_padded_groups_hold_every_pair_once():
    ids = torch.tensor([[0, 3], [3, -1], [3, 1], [0, 3]], dtype=torch.int32).repeat(60, 1)
    padded = pad_groups(ids, EXPERTS)
    assert len(padded.token_P) % GROUP == 0
    kept = ids >= 0
    assert (padded.place_TK[~kept] == -1).all()
    place = padded.place_TK[kept]
    assert len(place.unique()) == int(kept.sum()) == int((padded.expert_P >= 0).sum())
    assert torch.equal(padded.expert_P[place], ids[kept])
    assert torch.equal(padded.token_P[place], torch.where(kept)[0])
    for block in padded.expert_P.view(-1, GROUP):
        assert len(block[block >= 0].unique()) <= 1


def test_tutel_places_are_distinct_and_below_the_capacity():
    _, ids, weights = make_tokens(50)
    num_experts, experts, places, gates, capacity = critical_data(ids, weights, EXPERTS)
    assert num_experts == EXPERTS
    slots = torch.stack(experts) * capacity + torch.stack(places)
    assert len(slots.unique()) == ids.numel()
    assert capacity == int(ids.flatten().bincount().max()) == int(torch.stack(places).max()) + 1
    assert torch.equal(torch.stack(gates, dim=1), weights)


@pytest.mark.parametrize("precision", ["bf16", "fp8_row", "fp8_tensor", "mxfp4_w4a16"])
def test_interleaving_changes_no_result(precision):
    experts = make_experts(precision, PLAIN, bias=True)
    tokens = make_tokens(9)
    there = ordered(experts, "interleaved")
    assert there.activation.interleaved
    assert torch.equal(moe_layer(*tokens, there), moe_layer(*tokens, experts))
    back = ordered(there, "stacked")
    assert torch.equal(back.w13.data, experts.w13.data)


def test_up_first_moves_blocks_with_their_scales():
    experts = make_experts("fp8_block", PLAIN)
    moved = ordered(experts, "up_first")
    before, after = (FORMATS["e4m3_block"].decode(e.w13) for e in (experts, moved))
    assert torch.equal(after, torch.cat((before[:, WIDTH:], before[:, :WIDTH]), dim=1))
    with pytest.raises(ValueError, match="would part"):
        ordered(experts, "interleaved")


def test_math_paths():
    assert math_path(request("bf16")) == math_path(request("fp8_row")) == "native"
    assert math_path(request("mxfp4_w4a16")) == "upcast"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A vllm that ships a copy of deep_gemm, which imports itself by its own name."""
    copy = tmp_path / "vllm" / "third_party" / "deep_gemm"
    copy.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('the host need not be imported')")
    (copy / "__init__.py").write_text("from deep_gemm.inner import answer\n__version__ = '2.5.0'")
    (copy / "inner.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("vllm", "deep_gemm", "deep_gemm.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    _copy_of.cache_clear()
    yield copy
    _copy_of.cache_clear()
    for name in ("deep_gemm", "deep_gemm.inner"):
        sys.modules.pop(name, None)


def test_the_copy_in_another_package_is_found_and_named(host):
    assert is_installed("deep_gemm")
    assert load("deep_gemm").answer == 42
    assert load("deep_gemm.inner") is sys.modules["deep_gemm.inner"]
    assert version(ADAPTERS["deep_gemm"]).startswith("2.5.0 (copy in vllm")


def test_a_broken_peer_is_told_from_an_absent_one(host):
    (host / "__init__.py").write_text("raise OSError('libnvrtc.so.13 is missing')")
    assert is_installed("deep_gemm")
    with pytest.raises(PeerBroken, match=r"cannot be imported: OSError: libnvrtc\.so\.13"):
        load("deep_gemm")
    assert "deep_gemm" not in sys.modules
