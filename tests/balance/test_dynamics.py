"""Balance over steps: updates by hand, collapse without them, recovery with them, drift that is followed."""

import numpy as np
import pytest
import torch

from kernels.routing import ROUTERS
from kernels.routing.losses import switch_loss
from tests.workload.factory import make_cell
from workbench.balance.dynamics import (
    AUX_RATE,
    BIAS_RATE,
    MAX_STEPS,
    aux_gradient,
    bias_update,
    reached,
    training_steps,
)
from workbench.balance.history import placed_before
from workbench.spec.dispatch import Balance, Placement
from workbench.spec.errors import Unsupported
from workbench.spec.workload import Workload
from workbench.workload.steer import Steer
from workbench.workload.traffic import mean_scores, rank_logits, route_all

SIGMOID = {"kind": "sigmoid_group"}
SKEW = {"kind": "zipf", "alpha": 0.7}


def cell_of(training, *, steps=1, skew=SKEW, router=SIGMOID, **fields):
    cell = make_cell(ranks=4, experts=32, top_k=4, tokens=128, router=router, **fields)
    workload = Workload(tokens_per_rank=128, skew=skew, steps=steps)
    return cell.model_copy(update={"balance": Balance(training=training), "workload": workload})


def vio(steps):
    return np.array([step.max_vio for step in steps])


def test_the_bias_moves_by_gamma_towards_the_mean():
    assert bias_update(np.array([4, 2, 0, 2]), 0.001).tolist() == [-0.001, 0.0, 0.001, 0.0]
    first, second, third = training_steps(cell_of("bias"), steps=3)
    assert not first.bias_E.any()
    np.testing.assert_array_equal(second.bias_E, bias_update(first.loads_E, BIAS_RATE))
    np.testing.assert_allclose(third.bias_E, second.bias_E + bias_update(second.loads_E, BIAS_RATE))
    mean = first.loads_E.mean()
    assert first.max_vio == pytest.approx((first.loads_E.max() - mean) / mean)


def test_a_step_is_routed_by_the_real_router_with_that_bias():
    cell = cell_of("bias")
    *_, last = training_steps(cell, steps=20)
    bias = torch.tensor(last.steer.bias)
    assert bias.abs().max() > 0
    ids = [
        ROUTERS["sigmoid_group"](torch.from_numpy(rank_logits(cell, rank=rank, step=19)), top_k=4, bias=bias).ids
        for rank in range(4)
    ]
    np.testing.assert_array_equal(last.loads_E, np.bincount(torch.cat(ids).ravel(), minlength=32))


def test_the_gradient_is_that_of_the_switch_loss():
    cell = cell_of("aux_loss", router="softmax_topk")
    shift = torch.zeros(32, requires_grad=True, dtype=torch.float64)
    logits = torch.from_numpy(np.concatenate([rank_logits(cell, rank=rank) for rank in range(4)])).double()
    ids = torch.from_numpy(route_all(cell).ids.reshape(-1, 4).copy())
    switch_loss((logits + shift).softmax(1), ids).backward()
    loads, scores = np.bincount(ids.ravel(), minlength=32), mean_scores(cell)
    assert scores.sum() == pytest.approx(1)
    mean_field = aux_gradient(loads, scores)
    exact = shift.grad.numpy()
    assert np.corrcoef(mean_field, exact)[0, 1] > 0.97
    assert np.argmax(mean_field) == np.argmax(exact)
    first, second = training_steps(cell, steps=2)
    np.testing.assert_allclose(second.bias_E, -AUX_RATE * mean_field)
    assert not first.bias_E.any()


@pytest.mark.parametrize(("training", "rate"), [("bias", 0.01), ("aux_loss", 10.0)])
def test_experts_collapse_without_balancing_and_recover_with_it(training, rate):
    alone = list(training_steps(cell_of("none"), steps=60, reinforcement=0.03))
    assert vio(alone[-5:]).mean() > 1.5 * alone[0].max_vio
    assert vio(alone[-5:]).mean() > 0.8 * (32 / 4 - 1)
    mended = list(training_steps(cell_of(training), steps=150, rate=rate, start=alone[-1]))
    assert mended[0].max_vio == alone[-1].max_vio
    assert vio(mended[-10:]).mean() < 0.35 * alone[-1].max_vio
    kept = list(training_steps(cell_of(training), steps=60, rate=rate, reinforcement=0.01))
    assert vio(kept[-10:]).mean() < 0.5 * vio(alone[-10:]).mean()


def test_balancing_follows_drift():
    drift = {"kind": "drift", "sigma": 1.0, "rate": 0.01}
    loose = list(training_steps(cell_of("none", skew=drift), steps=80))
    held = list(training_steps(cell_of("aux_loss", skew=drift), steps=80, rate=10.0))
    assert held[0].max_vio == loose[0].max_vio
    assert vio(held[20:]).mean() < 0.5 * vio(loose[20:]).mean()


def test_a_cell_has_what_the_steps_before_its_last_one_made():
    cell = cell_of("bias", steps=6)
    assert reached(cell_of("none", steps=6)) is None
    assert reached(cell_of("bias")) == Steer()
    assert reached(cell) == list(training_steps(cell, steps=6))[-1].steer
    assert reached(cell, layer=1) != reached(cell)
    with pytest.raises(Unsupported, match="at most 4096"):
        reached(cell_of("bias", steps=MAX_STEPS + 1))


def test_experts_are_placed_by_the_balanced_loads():
    def placed(training):
        balance = Balance(training=training, placement=Placement(kind="eplb", redundant_experts=4))
        return placed_before(cell_of(training, steps=40).model_copy(update={"balance": balance})).slots

    assert (placed("aux_loss") != placed("none")).any()


@pytest.mark.parametrize("router", ["switch", "random", "expert_choice", "hash"])
def test_routers_that_cannot_be_steered_are_named(router):
    cell = cell_of("bias")
    cell = cell.model_validate(cell.model_dump() | {"router": router})
    with pytest.raises(Unsupported, match=f"router {router} cannot be steered"):
        next(training_steps(cell, steps=1))


def test_capacity_does_not_hide_what_was_chosen():
    cell = cell_of("bias")
    cell = cell.model_copy(update={"balance": Balance(training="bias", capacity=0.5)})
    assert next(training_steps(cell, steps=1)).loads_E.sum() == 4 * 128 * 4
