"""Auxiliary losses: values by hand, and gradients of losses and routers by finite differences in float64."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from kernels.routing import ROUTERS, Routing
from kernels.routing.cosine import cosine_logits
from kernels.routing.losses import (
    dense_gates,
    gshard_loss,
    importance_loss,
    load_loss,
    smooth_load,
    switch_loss,
    z_loss,
)
from kernels.routing.noisy_topk import noise_std, noisy_logits

WIDE = torch.float64


def logits_of(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=WIDE).requires_grad_()


def test_even_loads_are_the_least():
    scores, ids = torch.full((8, 4), 0.25), torch.arange(16).view(8, 2) % 4
    assert float(switch_loss(scores, ids)) == pytest.approx(1.0)
    assert float(gshard_loss(scores, torch.arange(8)[:, None] % 4)) == pytest.approx(1.0)
    assert float(importance_loss(scores)) == 0
    collapsed = torch.zeros(8, 4)
    collapsed[:, 2] = 1
    assert float(switch_loss(collapsed, torch.full((8, 1), 2))) == pytest.approx(4.0)
    assert float(importance_loss(collapsed)) == pytest.approx(3.0)  # mean 2, variance 12


def test_gshard_counts_first_choices_and_switch_all():
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]])
    ids = torch.tensor([[0, 1], [0, -1]])
    means = [0.55, 0.3, 0.15]
    assert float(gshard_loss(scores, ids)) == pytest.approx(3 * means[0])
    assert float(switch_loss(scores, ids)) == pytest.approx(3 * (means[0] * 2 / 4 + means[1] / 4))


def test_z_loss_by_hand():
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    assert float(z_loss(logits)) == pytest.approx((math.log(2) ** 2 + math.log(4) ** 2) / 2)
    assert float(z_loss(torch.zeros(0, 4))) == 0


def test_load_is_the_chance_to_be_chosen_again():
    """Against a count over many draws of an expert's own noise."""
    clean, std, top_k = torch.tensor([[0.3, -0.2, 0.9, 0.1]]), 0.7, 2
    noisy = clean + torch.tensor([[0.4, 0.1, -0.5, 0.2]])
    draws = torch.randn(200_000, generator=torch.Generator().manual_seed(0)) * std
    chances = []
    for expert in range(4):
        others = torch.cat([noisy[0, :expert], noisy[0, expert + 1 :]])
        chances.append(float((clean[0, expert] + draws > others.topk(top_k).values[-1]).float().mean()))
    expected = torch.tensor(chances)
    torch.testing.assert_close(smooth_load(clean, noisy, std, top_k=top_k), expected, atol=0.005, rtol=0)
    variation = float(expected.var(correction=0) / expected.mean() ** 2)
    assert float(load_loss(clean, noisy, std, top_k=top_k)) == pytest.approx(variation, rel=0.03)
    with pytest.raises(ValueError, match="top_k 4 and num_experts 4"):
        load_loss(clean, noisy, std, top_k=4)


def test_dense_gates_put_weights_in_their_columns():
    routing = Routing(torch.tensor([[2, 0], [1, -1]], dtype=torch.int32), torch.tensor([[0.7, 0.3], [0.9, 0.0]]))
    assert torch.equal(dense_gates(routing, 3), torch.tensor([[0.3, 0.0, 0.7], [0.0, 0.9, 0.0]]))


LOSSES = {
    "gshard": lambda logits: gshard_loss(logits.softmax(1), ROUTERS["softmax_topk"](logits, top_k=2).ids),
    "switch": lambda logits: switch_loss(logits.softmax(1), ROUTERS["softmax_topk"](logits, top_k=2).ids),
    "importance": lambda logits: importance_loss(dense_gates(ROUTERS["topk_softmax"](logits, top_k=2), 5)),
    "importance of scores": lambda logits: importance_loss(logits.softmax(1)),
    "z": z_loss,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_their_gradients(name):
    assert gradcheck(LOSSES[name], logits_of(6, 5))
    leaf = logits_of(6, 5, seed=1)
    LOSSES[name](leaf).backward()
    assert leaf.grad.abs().sum() > 0


def test_load_has_its_gradient_in_logits_and_noise():
    clean, noise = logits_of(6, 5), logits_of(6, 5, seed=1)

    def load(clean, noise):
        std = noise_std(noise_logits_TE=noise)
        return load_loss(clean, noisy_logits(clean, noise_logits_TE=noise, seed=3), std, top_k=2)

    assert gradcheck(load, (clean, noise))


ROUTED = {
    "softmax_topk": {"norm_topk": True, "routed_scaling": 2.0},
    "softmax_topk, not normalised": {"norm_topk": False},
    "softmax_topk, with bias": {"norm_topk": True, "bias": torch.linspace(-0.2, 0.2, 8)},
    "topk_softmax": {"routed_scaling": 1.5},
    "sigmoid_topk": {},
    "sigmoid_topk, normalised": {"norm_topk": True},
    "sigmoid_group": {"num_groups": 4, "topk_group": 2, "bias": torch.linspace(-0.2, 0.2, 8)},
    "softmax_group": {"num_groups": 4, "topk_group": 2, "routed_scaling": 16.0},
    "switch": {"capacity_factor": 0.7},
    "batch_prioritized": {"capacity_factor": 0.7, "norm_topk": True},
    "expert_choice": {"capacity_factor": 1.0},
    "cosine": {"temperature": 0.3},
    "noisy_topk": {"seed": 3},
}


@pytest.mark.parametrize("case", ROUTED)
def test_weights_of_every_router_have_their_gradient(case):
    route, options = ROUTERS[case.split(",")[0]], ROUTED[case]
    leaf = logits_of(7, 8)
    assert gradcheck(lambda logits: route(logits, top_k=3, **options).weights, leaf)
    ids = route(leaf.float(), top_k=3, **options).ids
    assert torch.equal(route(leaf, top_k=3, **options).ids, ids)


@pytest.mark.parametrize("case", ROUTED)
def test_bad_tokens_have_no_gradient_and_spoil_no_other(case):
    route, options = ROUTERS[case.split(",")[0]], ROUTED[case]
    leaf = logits_of(7, 8).detach().float()
    leaf[2], leaf[3, 1], leaf[4, 2] = float("nan"), float("-inf"), float("inf")
    leaf.requires_grad_()
    weights = route(leaf, top_k=3, **options).weights
    weights.square().sum().backward()
    assert leaf.grad.isfinite().all()
    assert (leaf.grad[2] == 0).all()


def test_noise_and_cosine_carry_gradients_to_their_own_weights():
    logits, noise = logits_of(5, 6), logits_of(5, 6, seed=1)
    route = ROUTERS["noisy_topk"]
    assert gradcheck(lambda a, b: route(a, top_k=2, noise_logits_TE=b, seed=3).weights, (logits, noise))
    parts = (logits_of(5, 4), logits_of(3, 4, seed=1), logits_of(6, 3, seed=2), torch.tensor(0.4, dtype=WIDE))
    parts[3].requires_grad_()
    assert gradcheck(lambda x, p, e, t: cosine_logits(x, p, e, temperature=t), parts)
