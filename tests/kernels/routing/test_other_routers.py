"""Expert choice, noisy top-k, cosine and hash against their definitions."""

import math

import pytest
import torch

from kernels.routing import ROUTERS, draws
from kernels.routing.cosine import cosine_logits
from kernels.routing.draws import mixed_bits, normal, uniform_bits
from kernels.routing.losses import dense_gates
from kernels.routing.noisy_topk import noisy_logits

NAN = float("nan")


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def chosen(routing, num_experts: int) -> torch.Tensor:
    """bool [T, E]."""
    return dense_gates(routing, num_experts) > 0


@pytest.mark.parametrize(("tokens", "experts", "top_k", "factor"), [(64, 8, 2, 1.0), (50, 7, 3, 0.5), (5, 16, 1, 1.0)])
def test_every_expert_takes_its_best_tokens(tokens, experts, top_k, factor):
    logits = gaussian(tokens, experts) + torch.arange(experts)  # skewed: loads are equal all the same
    found = ROUTERS["expert_choice"](logits, top_k=top_k, capacity_factor=factor)
    each = math.ceil(top_k * factor * tokens / experts)
    scores = logits.softmax(1)
    expected = torch.zeros(tokens, experts, dtype=torch.bool)
    for expert in range(experts):
        expected[scores[:, expert].sort(descending=True, stable=True).indices[:each], expert] = True
    assert torch.equal(chosen(found, experts), expected)
    torch.testing.assert_close(dense_gates(found, experts), scores * expected)
    spare = found.ids < 0
    assert not (spare[:, :-1] & ~spare[:, 1:]).any(), "spare columns stand last"


def test_expert_choice_can_be_bounded_a_token():
    logits = gaussian(64, 8)
    free = ROUTERS["expert_choice"](logits, top_k=4)
    bounded = ROUTERS["expert_choice"](logits, top_k=4, max_experts=3)
    assert bounded.ids.shape == (64, 3)
    assert torch.equal(bounded.ids, free.ids[:, :3])


def test_expert_choice_takes_no_nan_token_and_lower_tokens_in_a_tie():
    logits = torch.zeros(6, 2)
    logits[1] = NAN
    found = ROUTERS["expert_choice"](logits, top_k=1)
    assert found.ids.tolist() == [[0, 1], [-1, -1], [0, 1], [0, 1], [-1, -1], [-1, -1]]
    all_of_them = ROUTERS["expert_choice"](logits, top_k=2)
    assert all_of_them.ids[1].tolist() == [-1, -1]
    assert all_of_them.weights.isfinite().all()


def test_noise_has_its_size_and_selects():
    logits = torch.zeros(4000, 8)
    added = noisy_logits(logits, noise=0.5, seed=3)
    assert abs(float(added.mean())) < 0.01
    assert abs(float(added.std()) - 0.5) < 0.01
    found = ROUTERS["noisy_topk"](logits, top_k=2, noise=0.5, seed=3)
    values = added.gather(1, found.ids.long())
    torch.testing.assert_close(found.weights, values.softmax(1))
    assert torch.equal(values[:, 0], added.amax(1))
    other = ROUTERS["noisy_topk"](logits, top_k=2, noise=0.5, seed=4)
    assert not torch.equal(found.ids, other.ids)
    quiet = ROUTERS["noisy_topk"](gaussian(50, 8), top_k=2, noise=0.0)
    assert torch.equal(quiet.ids, ROUTERS["topk_softmax"](gaussian(50, 8), top_k=2).ids)


def test_trained_noise_scales_by_softplus():
    logits, noise_logits = gaussian(30, 6), gaussian(30, 6, seed=1) * 3
    plain = noisy_logits(logits, seed=2) - logits
    scaled = noisy_logits(logits, noise_logits_TE=noise_logits, seed=2) - logits
    torch.testing.assert_close(scaled, plain * torch.log1p(noise_logits.exp()), rtol=1e-3, atol=1e-5)
    assert noisy_logits(logits, noise_logits_TE=noise_logits * 1e4, seed=2).isfinite().all()


def test_draws_depend_on_seed_and_place_alone():
    whole = uniform_bits(100, 8, seed=5, device="cpu")
    assert torch.equal(uniform_bits(40, 8, seed=5, device="cpu"), whole[:40])
    assert torch.equal(mixed_bits(torch.arange(60, 100), 8, seed=5), whole[60:])
    assert torch.equal(uniform_bits(100, 3, seed=5, device="cpu"), whole[:, :3])
    for other in (6, 5 + (1 << 40)):
        assert not torch.equal(uniform_bits(100, 8, seed=other, device="cpu"), whole)
    assert not torch.equal(mixed_bits(torch.arange(100) + (1 << 40), 8, seed=5), whole)


def test_normal_draws_are_finite_at_both_ends(monkeypatch):
    ends = torch.tensor([[0.0, 1.0, 2.0**24 - 2, 2.0**24 - 1]])
    monkeypatch.setattr(draws, "uniform_bits", lambda *_, **__: ends)
    values = normal(1, 4, seed=0, device="cpu")
    assert values.isfinite().all()
    assert values[0, 0] == -values[0, 3] < -5
    assert (values.diff() > 0).all()


def test_mixed_bits_are_even_and_change_by_half():
    rows = torch.arange(1 << 14)
    bits = mixed_bits(rows, 4, seed=1).long()
    assert ((bits >= 0) & (bits < 1 << 24)).all()
    assert bits.unique().numel() > 0.99 * bits.numel()
    neighbours = (mixed_bits(rows ^ 1, 4, seed=1).long(), mixed_bits(rows, 4, seed=0).long(), bits.flip(1))
    for place in range(24):
        assert abs(float(((bits >> place) & 1).float().mean()) - 0.5) < 0.01
        for other in neighbours:
            assert abs(float((((bits ^ other) >> place) & 1).float().mean()) - 0.5) < 0.02


def test_hash_gives_equal_ids_equal_experts_and_all_experts_their_share():
    tokens = torch.randint(0, 100_000, (8000,), generator=torch.Generator().manual_seed(0))
    logits = torch.zeros(8000, 16)
    found = ROUTERS["hash"](logits, top_k=2, token_ids=tokens)
    again = ROUTERS["hash"](gaussian(8000, 16), top_k=2, token_ids=tokens.flip(0))
    assert torch.equal(again.ids.flip(0), found.ids)
    assert (found.ids[:, 0] != found.ids[:, 1]).all()
    counts = found.ids.flatten().bincount(minlength=16)
    assert counts.min() > 900  # mean 1000, standard deviation below 31
    assert counts.max() < 1100
    assert (found.weights == 0.5).all()
    row = ROUTERS["hash"](logits, top_k=1, token_ids=torch.arange(8000)).ids[:, 0]
    for shift in range(16):  # neighbours in the vocabulary have nothing to do with each other
        assert abs(float(((row[1:] - row[:-1]) % 16 == shift).float().mean()) - 1 / 16) < 0.015
    with pytest.raises(ValueError, match=r"token_ids must be \[T\] with T = 8000"):
        ROUTERS["hash"](logits, top_k=2, token_ids=tokens[:5])


def test_cosine_follows_its_definition():
    x, projection, experts = gaussian(20, 12), gaussian(5, 12, seed=1), gaussian(7, 5, seed=2)
    logits = cosine_logits(x, projection, experts, temperature=0.25)
    for token in range(20):
        for expert in range(7):
            cosine = torch.cosine_similarity(projection @ x[token], experts[expert], dim=0)
            assert float(logits[token, expert]) == pytest.approx(float(cosine) / 0.25, rel=1e-4, abs=1e-5)
    coldest = cosine_logits(x, projection, experts, temperature=0.0)
    torch.testing.assert_close(coldest, logits * 25, rtol=1e-4, atol=1e-4)
    assert torch.equal(cosine_logits(x, projection, experts, temperature=torch.tensor(0.25)), logits)


def test_cosine_router_weighs_angles_and_not_lengths():
    logits = gaussian(30, 10)
    found = ROUTERS["cosine"](logits, top_k=3, temperature=0.5)
    longer = ROUTERS["cosine"](logits * 1e30, top_k=3, temperature=0.5)
    assert torch.equal(found.ids, longer.ids)
    torch.testing.assert_close(found.weights, longer.weights)
    axes = cosine_logits(logits, torch.eye(10), torch.eye(10), temperature=0.5)
    torch.testing.assert_close(found.weights, ROUTERS["softmax_topk"](axes, top_k=3).weights)
