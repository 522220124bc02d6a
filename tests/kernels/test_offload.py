"""The expert cache: hit rates on recorded requests by hand, slots that hold what they say, outputs as without it."""

from collections import OrderedDict

import pytest
import torch

from kernels.activation import Activation
from kernels.expert_copy import ExpertCopies
from kernels.expert_parts import host_parts, parts_of
from kernels.moe import moe_layer, prepare_weights
from kernels.offload import POLICIES, ExpertCache
from kernels.offloaded_layer import offloaded_layer, touched_experts

CPU = torch.device("cpu")
EXPERTS, HIDDEN, WIDTH, TOP_K = 12, 64, 32, 3


@pytest.fixture(scope="module")
def host():
    return make_host("bf16")


def make_host(precision, *, bias=False):
    generator = torch.Generator().manual_seed(5)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator) / 8
    w2 = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator) / 6
    biases = {}
    if bias:
        biases = {"bias13": torch.randn(EXPERTS, 2 * WIDTH, generator=generator).bfloat16(),
                  "bias2": torch.randn(EXPERTS, HIDDEN, generator=generator).bfloat16(),
                  "activation": Activation(kind="clamped_swiglu", interleaved=True)}  # fmt: skip
    return prepare_weights(w13.bfloat16(), w2.bfloat16(), precision=precision, **biases)


def replay(host, requests, *, slots, policy, **options):
    cache = ExpertCache(host, num_slots=slots, device=CPU, policy=policy, **options)
    for experts in requests:
        cache.fetch(experts)
        cache.release()
    return cache


def check_slots(cache, host):
    """Every expert that is said to lie in a slot does, bit for bit."""
    slot_of = cache.fetch(sorted(cache.resident))
    for expert in range(EXPERTS):
        slot = int(slot_of[expert])
        if slot >= 0:
            assert torch.equal(cache.weights.w13.data[slot], host.w13.data[expert])
            assert torch.equal(cache.weights.w2.data[slot], host.w2.data[expert])


SINGLE = [[e] for e in (0, 1, 2, 0, 3, 0, 1, 4, 0, 2)]


@pytest.mark.parametrize(
    ("policy", "hits"),
    [
        # m a miss, h a hit: 0m 1m 2m 0h 3m(out 1) 0h 1m(out 2) 4m(out 3) 0h 2m(out 1)
        ("lru", 3),
        # 0m 1m 2m 0h 3m(out 1) 0h 1m(out 2) 4m(out 3, asked once) 0h 2m(out 4)
        ("lfu", 3),
        ("none", 0),
    ],
)
def test_hits_of_a_short_sequence_by_hand(host, policy, hits):
    counters = replay(host, SINGLE, slots=3, policy=policy).counters
    assert (counters.hits, counters.misses) == (hits, len(SINGLE) - hits)


def test_lfu_and_lru_part_where_a_scan_passes(host):
    """0 is asked often, then a scan of three others: lru forgets it, lfu does not."""
    requests = [[0], [0], [0], [1], [2], [3], [0]]
    assert replay(host, requests, slots=3, policy="lru").counters.hits == 2
    assert replay(host, requests, slots=3, policy="lfu").counters.hits == 3


def test_pinned_experts_never_leave(host):
    requests = [[0, 1], [2], [3], [4], [0, 1], [4], [0]]
    cache = replay(host, requests, slots=3, policy="pinned", pinned=(0, 1))
    # 0 1 hit each time they are asked (2 + 2 + 1), 4 once; 2 3 4 share one slot
    assert (cache.counters.hits, cache.counters.misses) == (6, 3)
    assert cache.resident == {0, 1, 4}


def test_experts_there_at_the_start_are_hits(host):
    assert replay(host, [[0, 1, 2]], slots=4, policy="lru", initial=(0, 1)).counters.hits == 2
    cache = replay(host, [[0, 1, 2]], slots=4, policy="lru", initial=(0, 1))
    cache.reset()
    assert cache.counters.hit_rate is None
    assert cache.counters.copied_bytes == 0
    assert cache.resident == {0, 1}


def lru_hits(requests, slots):
    """An independent LRU: requests of one layer are touched in order, and none of them gives way to another."""
    kept, hits = OrderedDict(), 0
    for experts in requests:
        hits += sum(e in kept for e in experts)
        for e in experts:
            kept.pop(e, None)
        while len(kept) + len(experts) > slots:
            kept.popitem(last=False)
        kept.update(dict.fromkeys(experts))
    return hits


@pytest.mark.parametrize("slots", [4, 6, 9, 12])
def test_lru_equals_an_independent_one_on_random_requests(host, slots):
    generator = torch.Generator().manual_seed(slots)
    weights = 1 / torch.arange(1, EXPERTS + 1).float()
    requests = [sorted(torch.multinomial(weights, 4, generator=generator).tolist()) for _ in range(200)]
    cache = replay(host, requests, slots=slots, policy="lru")
    assert cache.counters.hits == lru_hits(requests, slots)
    assert cache.counters.misses == 800 - cache.counters.hits
    assert cache.counters.copied_bytes == cache.counters.misses * cache.expert_bytes
    check_slots(cache, host)


def test_bytes_of_an_expert_are_those_of_its_formats():
    for precision, bias in (("mxfp4_w4a16", True), ("nvfp4_w4a16", False), ("fp8_tensor", False), ("fp8_block", False)):
        host = make_host(precision, bias=bias)
        cache = ExpertCache(host, num_slots=3, device=CPU)
        assert cache.expert_bytes * EXPERTS == host.nbytes
        assert cache.weights.nbytes == 3 * cache.expert_bytes


def test_a_prefetched_expert_is_a_miss_that_does_not_wait(host):
    cache = ExpertCache(host, num_slots=4, device=CPU)
    cache.fetch([0, 1])
    cache.prefetch([1, 2, 3], using=[0, 1])
    assert cache.resident == {0, 1, 2, 3}
    assert cache.counters.misses == 2, "not asked for yet"
    waited = cache.counters.wall_us
    cache.fetch([1, 2, 3])
    assert (cache.counters.hits, cache.counters.misses) == (1, 4)
    assert cache.counters.wall_us == waited
    cache.fetch([2])
    assert cache.counters.hits == 2, "asked for again, it is a hit"


def test_a_stall_counts_from_the_request_and_not_from_the_last_copy(host, monkeypatch):
    """The host needs a good part of a copy's time to give its many pieces to the device."""
    cache, order = ExpertCache(host, num_slots=3, device=CPU), []
    copy_in, honest = cache._copy_in, cache._wait
    monkeypatch.setattr(cache, "_mark", lambda: order.append("mark"))
    monkeypatch.setattr(cache, "_copy_in", lambda *args, **kwargs: (order.append("copy"), copy_in(*args, **kwargs)))
    monkeypatch.setattr(cache, "_wait", lambda since: (order.append("wait"), honest(since)))
    cache.fetch([0, 1])
    cache.fetch([0, 1])
    assert order == ["mark", "copy", "wait", "copy"], "the second has nothing to wait for"


def test_prefetching_takes_no_slot_in_use(host):
    cache = ExpertCache(host, num_slots=3, device=CPU)
    cache.fetch([0, 1])
    cache.prefetch([2, 3, 4], using=[0, 1])
    assert cache.resident == {0, 1, 2}
    check_slots(cache, host)


def test_what_cannot_be_is_refused(host):
    with pytest.raises(ValueError, match="num_slots: 13; want 1 to 12"):
        ExpertCache(host, num_slots=13, device=CPU)
    with pytest.raises(ValueError, match="known: none, lru, lfu, pinned"):
        ExpertCache(host, num_slots=2, device=CPU, policy="fifo")
    with pytest.raises(ValueError, match="leave none of 2 slots"):
        ExpertCache(host, num_slots=2, device=CPU, policy="pinned", pinned=(0, 1))
    with pytest.raises(ValueError, match="4 more do not fit 3 slots"):
        ExpertCache(host, num_slots=3, device=CPU).fetch([0, 1, 2, 3])


@pytest.mark.parametrize("precision", ["mxfp4_w4a16", "mxfp8", "nvfp4_w4a16"])
def test_packed_experts_travel_packed(precision):
    host = make_host(precision, bias=True).packed()
    cache = ExpertCache(host, num_slots=4, device=CPU)
    assert cache.weights.is_packed
    slot_of = cache.fetch([2, 7, 11])
    for expert in (2, 7, 11):
        for there, here in zip(parts_of(cache.weights), parts_of(host), strict=True):
            assert torch.equal(there[int(slot_of[expert])], here[expert])


@pytest.mark.parametrize(("precision", "most"), [("mxfp4_w4a16", 1.025), ("nvfp4_w4a16", 1.025), ("mxfp8", 1.003)])
def test_packing_costs_few_bytes_of_a_copy(precision, most):
    """gpt-oss's 2880 columns are 23 tiles of 128 less a half, so the stall that unpadded bytes foretell holds."""
    w13, w2 = torch.randn(1, 128, 2880), torch.randn(1, 2880, 64).repeat(1, 1, 45)
    host = prepare_weights(torch.cat([w13] * 45, 1).bfloat16(), w2.bfloat16(), precision=precision)
    packed = ExpertCache(host.packed(), num_slots=1, device=CPU).expert_bytes
    assert host.nbytes < packed < most * host.nbytes


def test_stacks_are_joined_in_order(host):
    whole = host_parts([host, host], num_experts=2 * EXPERTS, pinned=False)
    assert torch.equal(whole.w2.data[EXPERTS:], host.w2.data)
    with pytest.raises(ValueError, match="hold 12 experts, not 13"):
        host_parts([host], num_experts=EXPERTS + 1, pinned=False)


def make_tokens(num_tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, HIDDEN, generator=generator).bfloat16()
    weights, ids = torch.rand(num_tokens, EXPERTS, generator=generator).topk(TOP_K, dim=1)
    return x, ids.int(), weights


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("slots", [2, 5, 12])
@pytest.mark.parametrize("known", [False, True])
def test_outputs_equal_those_without_offload(host, policy, slots, known):
    pinned = (3,) if policy == "pinned" else ()
    cache = ExpertCache(host, num_slots=slots, device=CPU, policy=policy, pinned=pinned, initial=(7,))
    steps = [make_tokens(tokens, seed) for seed, tokens in enumerate((1, 9, 0, 40, 2))]
    asked = [touched_experts(ids) for _, ids, _ in steps] + [[]]
    for (x, ids, weights), experts, following in zip(steps, asked, asked[1:], strict=False):
        ahead = {"experts": experts, "next_experts": following} if known else {}
        y = offloaded_layer(x, ids, weights, cache, **ahead)
        assert torch.equal(y, moe_layer(x, ids, weights, host))
    assert cache.counters.hits + cache.counters.misses == sum(map(len, asked))
    check_slots(cache, host)


@pytest.mark.parametrize(("precision", "bias"), [("mxfp4_w4a16", True), ("fp8_block", False), ("nvfp4_w4a16", False)])
@pytest.mark.parametrize("weight_on", ["output", "input"])
def test_every_part_of_an_expert_is_copied(precision, bias, weight_on):
    host = make_host(precision, bias=bias)
    cache = ExpertCache(host, num_slots=4, device=CPU)
    x, ids, weights = make_tokens(20, seed=3)
    ids[::4, 2] = -1
    weights = torch.where(ids < 0, 0.0, weights)
    y = offloaded_layer(x, ids, weights, cache, weight_on=weight_on)
    assert torch.equal(y, moe_layer(x, ids, weights, host, weight_on=weight_on))


def test_waves_fit_the_slots_and_start_with_residents(host):
    cache = ExpertCache(host, num_slots=6, device=CPU, initial=(8, 9, 10))
    assert cache.waves(list(range(12)), overlap=False) == [[8, 9, 10, 0, 1, 2], [3, 4, 5, 6, 7, 11]]
    assert cache.waves(list(range(12)), overlap=True) == [[8, 9, 10], [0, 1, 2], [3, 4, 5], [6, 7, 11]]
    assert cache.waves([], overlap=True) == cache.waves([], overlap=False) == []


@pytest.mark.parametrize("large_bytes", [1, 300, 1 << 20])
def test_an_expert_arrives_whole_whether_its_parts_travel_alone_or_together(large_bytes):
    generator = torch.Generator().manual_seed(1)
    shapes = {(7, 5): torch.uint8, (64,): torch.float32, (3,): torch.bfloat16, (2, 100): torch.int16, (): torch.float32,
              (0,): torch.uint8}  # fmt: skip
    host = [torch.randint(0, 99, (3, *shape), generator=generator).to(dtype) for shape, dtype in shapes.items()]
    slots = [torch.zeros(2, *part.shape[1:], dtype=part.dtype) for part in host]
    copies = ExpertCopies(host, slots, large_bytes=large_bytes)
    copies.copy(2, 0)
    copies.copy(0, 1)
    for part, held in zip(host, slots, strict=True):
        assert torch.equal(held[0], part[2])
        assert torch.equal(held[1], part[0])
