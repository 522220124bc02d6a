"""Installed peers on a GPU: right on fresh inputs over poisoned memory, twice the same, in a graph."""

import pytest
import torch

from kernels.activation import Activation
from kernels.adapters import ADAPTERS, LayerRequest, refusal
from kernels.backend import capability_of
from kernels.formats import FORMATS
from kernels.moe import prepare_weights
from kernels.recipes import RECIPES
from kernels.reference import moe_reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
EXPERTS, HIDDEN, WIDTH, TOP_K = 16, 512, 256, 4
GPT_OSS = Activation(kind="clamped_swiglu", interleaved=True)
HOST_WAITS = {"transformer_engine", "tutel"}


def cases():
    for name, peer in ADAPTERS.items():
        for recipe in RECIPES.values():
            if (recipe.weights, recipe.activations) in peer.formats:
                yield from ((name, recipe.name, activation) for activation in (Activation(), GPT_OSS))


def set_up(name, precision, activation):
    """The peer's call, the encoded experts; skipped where the peer is absent or refuses the layer."""
    device = torch.device("cuda")
    biased = activation is GPT_OSS and name != "deep_gemm"
    asked = LayerRequest(EXPERTS, HIDDEN, WIDTH, TOP_K, RECIPES[precision], activation, has_bias=biased)
    reason = refusal(ADAPTERS[name], asked, device_type="cuda", capability=capability_of(device))
    if reason:
        pytest.skip(reason)
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=device).bfloat16()

    biases = {"bias13": normal(EXPERTS, 2 * WIDTH), "bias2": normal(EXPERTS, HIDDEN)} if biased else {}
    w13, w2 = normal(EXPERTS, 2 * WIDTH, HIDDEN) / HIDDEN**0.5, normal(EXPERTS, HIDDEN, WIDTH) / WIDTH**0.5
    experts = prepare_weights(w13, w2, precision=precision, activation=activation, **biases)
    return ADAPTERS[name].prepare(experts, asked), experts


def tokens(num_tokens, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(num_tokens, HIDDEN, generator=generator, device="cuda").bfloat16()
    weights, ids = torch.rand(num_tokens, EXPERTS, generator=generator, device="cuda").topk(TOP_K, dim=1)
    return x, ids.int(), weights


def poison():
    """NaN in the memory that the next call will get."""
    del [torch.full((1 << 24,), float("nan"), device="cuda") for _ in range(4)][:]


def deviation(y, inputs, experts):
    x, ids, weights = inputs
    w13, w2 = (FORMATS[w.format].decode(w) for w in (experts.w13, experts.w2))
    expected = moe_reference(
        x, ids, weights, w13, w2, bias13=experts.bias13, bias2=experts.bias2, activation=experts.activation
    )
    return float((y.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("name", "precision", "activation"), list(cases()))
@pytest.mark.parametrize("num_tokens", [1, 37, 700])
def test_an_installed_peer_gives_the_layer(name, precision, activation, num_tokens):
    call, experts = set_up(name, precision, activation)
    inputs = tokens(num_tokens, seed=num_tokens)
    limit = 0.01 + 2 * FORMATS[RECIPES[precision].activations].tolerance
    poison()
    first = call(*inputs).clone()
    assert deviation(first, inputs, experts) < limit
    poison()
    assert deviation(call(*inputs), inputs, experts) < limit


@pytest.mark.parametrize(("name", "precision", "activation"), [case for case in cases() if case[0] not in HOST_WAITS])
def test_a_graph_replays_the_peer_on_new_inputs(name, precision, activation):
    call, experts = set_up(name, precision, activation)
    inputs = tokens(64, seed=1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(*inputs)
    fresh = tokens(64, seed=2)
    for held, new in zip(inputs, fresh, strict=True):
        held.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    assert deviation(y, fresh, experts) < 0.01 + 2 * FORMATS[RECIPES[precision].activations].tolerance
