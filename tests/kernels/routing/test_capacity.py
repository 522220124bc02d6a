"""Capacity of experts: Tutel's meaning of the factor, right where Tutel's code is wrong; who keeps a slot."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.routing import ROUTERS, Routing, limit_capacity, slot_limit
from kernels.routing.capacity import expert_counts, padded_capacity, place_in_expert


def routing_of(ids: list[list[int]]) -> Routing:
    ids = torch.tensor(ids, dtype=torch.int32)
    return Routing(ids, torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) + 0.1)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "factor", "slots"),
    [
        (100, 16, 2, 1.0, 14),  # Tutel's, where top_k * f * T / E would be 12.5
        (1024, 16, 1, 1.0, 64),
        (1024, 16, 1, -1.25, 80),
        (10, 16, 1, 0.5, 1),  # Tutel's truncation gives 0 and drops everything
        (10, 16, 2, 0.5, 1),
        (100, 10, 1, 1.1, 11),
        (4, 2, 2, 2.0, 4),
        (0, 16, 2, 1.0, 0),
        (1024, 16, 1, 0.0, None),
    ],
)
def test_slots_of_an_expert(tokens, experts, top_k, factor, slots):
    assert slot_limit(num_tokens=tokens, num_experts=experts, top_k=top_k, capacity_factor=factor) == slots


def test_b15_capacity_behind_a_router_is_at_most_the_tokens():
    routing = ROUTERS["softmax_topk"](normal(4, 2), top_k=2)
    assert slot_limit(num_tokens=4, num_experts=2, top_k=2, capacity_factor=2.0) == 4
    assert torch.equal(limit_capacity(routing, num_experts=2, capacity_factor=2.0).ids, routing.ids)


def test_a_full_expert_drops_later_tokens_and_second_choices_first():
    routing = routing_of([[0, 1], [1, 0], [0, 1], [0, 2]])
    kept = limit_capacity(routing, num_experts=3, capacity_factor=0.5)  # 2 * floor(0.5 * ceil(4 / 3)) = 2 slots
    assert kept.ids.tolist() == [[0, 1], [1, -1], [0, -1], [-1, 2]]
    assert (kept.weights[kept.ids < 0] == 0).all()
    assert torch.equal(kept.weights[kept.ids >= 0], routing.weights[kept.ids >= 0])


def test_both_signs_drop_alike_and_zero_drops_nothing():
    routing = ROUTERS["softmax_topk"](normal(500, 8) + torch.arange(8) * 0.5, top_k=2)
    results = {f: limit_capacity(routing, num_experts=8, capacity_factor=f) for f in (0.7, -0.7, 0.0)}
    assert torch.equal(results[0.7].ids, results[-0.7].ids)
    assert (results[0.7].ids < 0).any()
    assert torch.equal(results[0.0].ids, routing.ids)


def test_padding_of_factor_zero_is_the_fullest_expert_and_a_negative_one_caps_it():
    ids = torch.tensor([[0, 1], [0, 2], [0, -1], [3, 0]])
    sizes = {f: int(padded_capacity(ids, num_experts=4, capacity_factor=f)) for f in (1.0, 0.0, -1.0, -9.0)}
    assert sizes == {1.0: 2, 0.0: 4, -1.0: 2, -9.0: 4}
    assert expert_counts(ids, 4).tolist() == [4, 1, 1, 1]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 10_000), st.booleans())
def test_places_are_those_of_a_queue(tokens, experts, seed, prioritised):
    """The queue written out: choice by choice, token by token, each expert counting its own."""
    generator = torch.Generator().manual_seed(seed)
    top_k = 1 + seed % experts
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :top_k]
    priority = torch.randint(0, 4, (tokens,), generator=generator).float() if prioritised else None
    turns = range(tokens) if priority is None else sorted(range(tokens), key=lambda token: -priority[token].item())
    expected, counts = torch.zeros(tokens, top_k, dtype=torch.int64), [0] * experts
    for choice in range(top_k):
        for token in turns:
            expected[token, choice] = counts[ids[token, choice]]
            counts[ids[token, choice]] += 1
    assert torch.equal(place_in_expert(ids, priority_T=priority), expected)


def test_batch_prioritised_keeps_the_surest_tokens():
    logits = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0], [0.0, 0.5]])
    found = ROUTERS["batch_prioritized"](logits, top_k=1, capacity_factor=1.0)
    assert found.ids.tolist() == [[-1], [0], [0], [1]]
    torch.testing.assert_close(found.weights[1], logits[1].softmax(0)[:1])
    ordered = ROUTERS["softmax_topk"](logits, top_k=1)
    assert limit_capacity(ordered, num_experts=2, capacity_factor=1.0).ids.tolist() == [[0], [0], [-1], [1]]


def test_batch_prioritised_first_choices_outrank_second_ones():
    logits = torch.tensor([[5.0, 4.0, -9.0], [0.1, 0.2, 0.0], [9.0, 1.0, 0.0]])
    found = ROUTERS["batch_prioritized"](logits, top_k=2, capacity_factor=0.5)
    assert found.ids.tolist() == [[-1, -1], [1, -1], [0, -1]]


@pytest.mark.parametrize("factor", [0.0, -10.0])
def test_batch_prioritised_with_a_factor_of_zero_or_below_drops_only_what_it_must(factor):
    """Tutel's gives 5 slots for T = 1024, E = 16, K = 1 and drops 944 tokens."""
    logits = normal(1024, 16, seed=3)
    found = ROUTERS["batch_prioritized"](logits, top_k=1, capacity_factor=factor)
    assert (found.ids >= 0).all()
    assert torch.equal(found.ids, ROUTERS["softmax_topk"](logits, top_k=1).ids)
    tight = ROUTERS["batch_prioritized"](logits, top_k=1, capacity_factor=-1.0)
    counts = expert_counts(ROUTERS["softmax_topk"](logits, top_k=1).ids, 16)
    assert int((tight.ids < 0).sum()) == int((counts - 64).clamp(min=0).sum())


def test_batch_prioritised_normalises_before_it_drops():
    logits = normal(40, 4, seed=5)
    found = ROUTERS["batch_prioritized"](logits, top_k=2, capacity_factor=0.6, norm_topk=True)
    plain = ROUTERS["softmax_topk"](logits, top_k=2)
    kept = found.ids >= 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(found.weights[kept], plain.weights[kept])
    assert torch.equal(found.ids[kept], plain.ids[kept])


def test_b08_a_nan_token_is_dropped_by_batch_prioritised_and_takes_no_capacity():
    logits = torch.tensor([[float("nan")] * 2, [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    found = ROUTERS["batch_prioritized"](logits, top_k=1, capacity_factor=1.0)
    assert found.ids.tolist() == [[-1], [-1], [0], [0]]
    assert ROUTERS["batch_prioritized"](logits, top_k=1, capacity_factor=0.0).ids.tolist() == [[-1], [0], [0], [0]]
