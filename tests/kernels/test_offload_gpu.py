"""The expert cache on a GPU: slots overwritten only when nothing reads them, waits that are those of the link."""

import pytest
import torch

from kernels.expert_parts import host_parts
from kernels.moe import moe_layer, prepare_weights
from kernels.offload import ExpertCache
from kernels.offloaded_layer import offloaded_layer, touched_experts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
EXPERTS, HIDDEN, WIDTH, TOP_K = 32, 2048, 2048, 4


@pytest.fixture(scope="module")
def experts():
    generator = torch.Generator(device="cuda").manual_seed(0)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator, device="cuda") / HIDDEN**0.5
    w2 = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator, device="cuda") / WIDTH**0.5
    return prepare_weights(w13.bfloat16(), w2.bfloat16(), precision="bf16")


@pytest.mark.parametrize("precision", ["fp8_block", "mxfp8", "mxfp4_w4a16", "mxfp4_w4a8", "nvfp4_w4a16"])
@pytest.mark.parametrize("prepared_on", ["cuda", "cpu"])
def test_small_formats_come_through_the_slots(precision, prepared_on):
    generator = torch.Generator(device="cuda").manual_seed(1)
    w13 = torch.randn(8, 512, 256, generator=generator, device="cuda").bfloat16() / 16
    w2 = torch.randn(8, 256, 256, generator=generator, device="cuda").bfloat16() / 16
    experts = prepare_weights(w13, w2, precision=precision)
    cache = ExpertCache(
        host_parts([experts.to(prepared_on)], num_experts=8, pinned=True),
        num_slots=3,
        device=torch.device("cuda"),
        policy="lfu",
    )
    assert cache.weights.backend_on(torch.device("cuda"), "auto") == experts.backend_on(torch.device("cuda"), "auto")
    x = torch.randn(50, 256, generator=generator, device="cuda").bfloat16()
    weights, ids = torch.rand(50, 8, generator=generator, device="cuda").topk(2, dim=1)
    y, expected = offloaded_layer(x, ids.int(), weights, cache), moe_layer(x, ids.int(), weights, experts)
    assert float((y.float() - expected.float()).norm() / expected.float().norm()) < 0.005


def steps(num_tokens, count):
    generator = torch.Generator(device="cuda").manual_seed(num_tokens)
    for _ in range(count):
        x = torch.randn(num_tokens, HIDDEN, generator=generator, device="cuda").bfloat16()
        weights, ids = torch.rand(num_tokens, EXPERTS, generator=generator, device="cuda").topk(TOP_K, dim=1)
        yield x, ids.int(), weights


def run(cache, batches, *, ahead):
    asked = [touched_experts(ids) for _, ids, _ in batches] + [[]]
    outputs = []
    for index, batch in enumerate(batches):
        known = {"experts": asked[index], "next_experts": asked[index + 1]} if ahead else {}
        outputs.append(offloaded_layer(*batch, cache, **known))
    return outputs


@pytest.mark.parametrize("slots", [4, 16, 32])
@pytest.mark.parametrize("num_tokens", [2, 300])
@pytest.mark.parametrize("ahead", [False, True])
def test_outputs_equal_those_without_offload_on_a_gpu(experts, slots, num_tokens, ahead):
    host = host_parts([experts], num_experts=EXPERTS, pinned=True)
    cache = ExpertCache(host, num_slots=slots, device=torch.device("cuda"), initial=range(slots))
    batches = list(steps(num_tokens, 6))
    for y, batch in zip(run(cache, batches, ahead=ahead), batches, strict=True):
        expected = moe_layer(*batch, experts)
        assert float((y.float() - expected.float()).norm() / expected.float().norm()) < 0.005


def test_the_stall_is_that_of_the_link_and_prefetch_hides_it(experts):
    """Many tokens, so that the work on one wave is longer than the copy of the next."""
    host = host_parts([experts], num_experts=EXPERTS, pinned=True)
    cache = ExpertCache(host, num_slots=EXPERTS // 2, device=torch.device("cuda"), initial=range(EXPERTS // 2))
    source = host.w13.data
    target = torch.empty_like(source, device="cuda")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    target.copy_(source, non_blocking=True)
    marks[0].record()
    target.copy_(source, non_blocking=True)
    marks[1].record()
    torch.cuda.synchronize()
    bytes_per_us = source.nbytes / (marks[0].elapsed_time(marks[1]) * 1e3)
    batches = list(steps(65536, 4))
    stalls = []
    for ahead in (False, True):
        run(cache, batches, ahead=ahead)
        cache.reset()
        run(cache, batches, ahead=ahead)
        stalls.append(cache.counters.stall_us())
        if not ahead:
            model_us = cache.counters.misses * cache.expert_bytes / bytes_per_us
    assert stalls[0] == pytest.approx(model_us, rel=0.2)
    assert stalls[1] < 0.5 * stalls[0]


def test_the_stall_counts_from_the_request_where_an_expert_is_many_copies():
    """Eight copies an expert, which the host gives to the device while the first ones run."""
    generator = torch.Generator(device="cuda").manual_seed(2)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator, device="cuda") / HIDDEN**0.5
    w2 = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator, device="cuda") / WIDTH**0.5
    biases = {"bias13": w13[..., 0].bfloat16(), "bias2": w2[..., 0].bfloat16()}
    made = prepare_weights(w13.bfloat16(), w2.bfloat16(), precision="mxfp4_w4a16", **biases)
    host = host_parts([made], num_experts=EXPERTS, pinned=True)
    cache = ExpertCache(host, num_slots=EXPERTS // 2, device=torch.device("cuda"))
    source = host.packed13.words
    target = torch.empty_like(source, device="cuda")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    target.copy_(source, non_blocking=True)
    marks[0].record()
    target.copy_(source, non_blocking=True)
    marks[1].record()
    torch.cuda.synchronize()
    bytes_per_us = source.nbytes / (marks[0].elapsed_time(marks[1]) * 1e3)
    batches = list(steps(16, 4))
    run(cache, batches, ahead=False)
    cache.reset()
    run(cache, batches, ahead=False)
    model_us = cache.counters.misses * cache.expert_bytes / bytes_per_us
    assert 0.9 * model_us <= cache.counters.stall_us() <= 1.5 * model_us
