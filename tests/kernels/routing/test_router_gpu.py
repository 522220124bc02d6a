"""Routers on a GPU: the fused kernel against its torch twin there, no wait for the device, capture in a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kernels.routing import ROUTERS, Routing, limit_capacity, rules
from kernels.routing.capacity import padded_capacity
from kernels.routing.losses import dense_gates, gshard_loss, importance_loss, load_loss, switch_loss, z_loss
from tests.kernels.routing.interpreted_router_cases import CASES, INF, NAN

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ROUNDING = 1e-5
BACKENDS = ("auto", "torch")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def ready(name: str, logits: torch.Tensor, options: dict | None = None) -> dict:
    """Options of a router for these logits; a bias where they ask for one."""
    options = dict(options or {})
    if options.pop("bias", False):
        options["bias"] = normal(logits.shape[1], seed=9) * 0.3 - 0.5
    needs = {"random": {"seed": 3}, "hash": {"token_ids": torch.arange(len(logits), device="cuda") % 40}}
    return options | needs.get(name, {})


def spoilt(rows: int, experts: int) -> torch.Tensor:
    logits = normal(rows + 4, experts, seed=2)
    logits[0] = NAN
    logits[1, ::2] = NAN
    logits[2], logits[2, ::3], logits[2, 1::3], logits[2, 1:2] = -1.0, -INF, 0.0, -0.0
    logits[3, -1] = INF
    return logits


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any operation that waits for the device raises."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def assert_equal(ours: Routing, twin: Routing) -> None:
    assert torch.equal(ours.ids, twin.ids)
    torch.testing.assert_close(ours.weights, twin.weights, rtol=ROUNDING, atol=1e-30)


@pytest.mark.parametrize("kind", ["plain", "tied", "spoilt"])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_equals_its_twin_on_gpu(case, kind):
    name, rows, experts, top_k, options = CASES[case]
    made = {
        "plain": lambda: normal(rows, experts),
        "tied": lambda: normal(rows, experts, seed=1).round().clamp(-1, 1),
        "spoilt": lambda: spoilt(rows, experts),
    }
    logits = made[kind]()
    options = ready(name, logits, options)
    torch.full((2 * rows + 64, max(top_k, 1)), NAN, device="cuda")  # leaves what an unwritten result would show
    ours, twin = (ROUTERS[name](logits, top_k=top_k, backend=b, **options) for b in ("triton", "torch"))
    assert_equal(ours, twin)
    automatic = ROUTERS[name](logits, top_k=top_k, **options)
    assert torch.equal(automatic.ids, ours.ids)
    assert torch.equal(automatic.weights, ours.weights)


def test_a_gpu_takes_the_kernel_by_itself():
    logits = normal(4, 512)
    assert rules._backend(logits, top_k=8, backend="auto") == "triton"
    assert rules._backend(logits, top_k=8, backend="torch") == "torch"
    assert rules._backend(normal(4, 513), top_k=8, backend="auto") == "torch"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "experts", "top_k", "options"),
    [
        ("softmax_topk", 128, 8, {}),
        ("topk_softmax", 512, 10, {}),
        ("sigmoid_group", 256, 8, {"num_groups": 8, "topk_group": 4, "bias": True}),
    ],
)
def test_many_tokens(name, experts, top_k, options, dtype):
    logits = normal(65_537, experts).to(dtype)
    options = ready(name, logits, options)
    ours, twin = (ROUTERS[name](logits, top_k=top_k, backend=b, **options) for b in ("triton", "torch"))
    assert_equal(ours, twin)
    again = ROUTERS[name](logits, top_k=top_k, backend="triton", **options)
    assert torch.equal(again.weights, ours.weights)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ROUTERS)
def test_no_router_waits_for_the_device(name, backend):
    logits = normal(300, 64)
    options = ready(name, logits)
    ROUTERS[name](logits, top_k=4, backend=backend, **options)  # compiles
    with no_waiting():
        routing = ROUTERS[name](logits, top_k=4, backend=backend, **options)
        limit_capacity(routing, num_experts=64, capacity_factor=0.7, priority_T=logits[:, 0])
        padded_capacity(routing.ids, num_experts=64, capacity_factor=-1.0)


def test_no_loss_waits_for_the_device():
    logits = normal(300, 64).requires_grad_()

    def total() -> torch.Tensor:
        routing = ROUTERS["softmax_topk"](logits, top_k=4)
        scores, gates = logits.softmax(1), dense_gates(routing, 64)
        parts = (gshard_loss(scores, routing.ids), switch_loss(scores, routing.ids), importance_loss(gates))
        return sum(parts) + z_loss(logits) + load_loss(logits, logits, 1.0, top_k=4)

    total().backward()
    with no_waiting():
        total().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_can_be_captured_in_a_cuda_graph(name, backend):
    logits = normal(256, 64)
    options = ready(name, logits)

    def route() -> Routing:
        routing = ROUTERS[name](logits, top_k=4, backend=backend, **options)
        return limit_capacity(routing, num_experts=64, capacity_factor=0.9)

    route()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = route()
    logits.copy_(normal(256, 64, seed=1))
    graph.replay()
    torch.cuda.synchronize()
    expected = route()
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.weights, expected.weights)


@pytest.mark.parametrize("name", ROUTERS)
def test_a_gpu_selects_as_a_cpu_does(name):
    logits = normal(256, 64)
    options = ready(name, logits)
    ours = ROUTERS[name](logits, top_k=4, **options)
    cpu = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    other = ROUTERS[name](logits.cpu(), top_k=4, **cpu)
    assert torch.equal(ours.ids.cpu(), other.ids)
    torch.testing.assert_close(ours.weights.cpu(), other.weights, rtol=ROUNDING, atol=1e-7)


@pytest.mark.parametrize("case", ["softmax_topk", "deepseek-v3", "deepseek-v2", "sigmoid_topk normalised", "switch"])
def test_gradients_through_the_kernel(case):
    name, rows, experts, top_k, options = CASES[case]
    logits = normal(rows, experts)
    options = ready(name, logits, options)
    upstream, found = normal(rows, top_k, seed=4), []
    for backend in ("triton", "torch"):
        leaf = logits.clone().requires_grad_()
        ROUTERS[name](leaf, top_k=top_k, backend=backend, **options).weights.backward(upstream)
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
