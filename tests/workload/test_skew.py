"""Skews keep the loads they promise."""

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.spec.errors import Unsupported
from workbench.spec.workload import PowerLaw, Uniform
from workbench.workload.counter import POPULARITY, uniform
from workbench.workload.loads import slot_counts
from workbench.workload.skew import Crowd, inclusion, log_popularity, logs_of_loads
from workbench.workload.traffic import route_all


def crowd(**changes) -> Crowd:
    return Crowd(**{"num_experts": 64, "top_k": 8, "num_ranks": 4, "num_tokens": 4096, "seed": 3, "layer": 0,
                    "step": 0} | changes)  # fmt: skip


def loads(skew, **fields) -> np.ndarray:
    cell = make_cell(tokens=4000, skew=skew, **fields)
    return slot_counts(route_all(cell).ids, cell.model.num_experts)


def test_promised_loads_come_out_of_the_sampling():
    shares = np.linspace(1, 4, 64)
    logs = logs_of_loads(shares, 8)
    np.testing.assert_allclose(inclusion(np.exp(logs), 8), shares / shares.sum() * 8, rtol=1e-9)


def test_loads_above_one_a_token_are_cut_and_the_rest_keeps_its_proportions():
    shares = np.array([100.0, 1, 2, 3, 4, 5, 6, 7])
    chances = inclusion(np.exp(logs_of_loads(shares, 3)), 3)
    assert chances[0] == pytest.approx(0.999, abs=1e-6)
    np.testing.assert_allclose(chances[1:] / chances[1], np.arange(1, 8), rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.2])
def test_power_law_loads_follow_the_inverse_cdf(alpha):
    skew, group = PowerLaw(alpha=alpha), crowd()
    u = uniform(64, seed=3, purpose=POPULARITY, place=(0, 0))
    low, high = 1.0, 0.8 * 4096
    grid = np.linspace(low, high, 2_000_001)
    density = np.concatenate([[0], np.cumsum((grid[1:] ** -alpha + grid[:-1] ** -alpha) / 2)])
    drawn = np.interp(u, density / density[-1], grid)
    expected = drawn / drawn.sum() * 8
    reached = inclusion(np.exp(log_popularity(skew, group).astype(float)), 8)
    kept = (expected < 0.9) & (expected > 0.001)
    ratio = reached[kept] / expected[kept]
    np.testing.assert_allclose(ratio, ratio[0], rtol=5e-3)


def test_measured_loads_follow_the_power_law():
    group = crowd(num_tokens=16000, top_k=4, seed=0)
    promised = inclusion(np.exp(log_popularity(PowerLaw(alpha=1.01), group).astype(float)), 4) * 16000
    got = loads({"kind": "power_law", "alpha": 1.01})
    assert np.abs(got - promised).max() < 0.03 * promised.max()


@pytest.mark.parametrize("target", [1.0, 2.0, 6.0])
def test_lognormal_meets_its_maximum_over_mean(target):
    got = loads({"kind": "lognormal", "max_over_mean": target})
    assert got.max() / got.mean() == pytest.approx(target, rel=0.12)  # 1000 tokens an expert: 3 sigma are 10%


def test_lognormal_refuses_what_no_expert_can_take():
    with pytest.raises(Unsupported, match="between 1 and 15"):
        loads({"kind": "lognormal", "max_over_mean": 17.0})


@pytest.mark.parametrize(("factor", "rank"), [(1.0, 0), (3.0, 2), (12.0, 3)])
def test_hot_rank_gets_its_factor(factor, rank):
    per_rank = loads({"kind": "hot_rank", "factor": factor, "rank": rank}).reshape(4, 16).sum(axis=1)
    others = np.delete(per_rank, rank).mean()
    assert per_rank[rank] / others == pytest.approx(factor, rel=0.05)


def test_hot_rank_refuses_the_impossible():
    with pytest.raises(Unsupported, match="picks a token"):
        loads({"kind": "hot_rank", "factor": 100.0}, experts=16, top_k=8)
    with pytest.raises(Unsupported, match="rank"):
        loads({"kind": "hot_rank", "factor": 2.0, "rank": 4})


def test_zipf_falls_as_a_power_and_hits_no_fixed_expert():
    skew = {"kind": "zipf", "alpha": 1.0}
    ordered = np.sort(loads(skew, top_k=1))[::-1]
    np.testing.assert_allclose(ordered[0] / ordered[[1, 3, 9]], [2, 4, 10], rtol=0.15)
    hottest = {int(loads(skew, top_k=1, seed=seed).argmax()) for seed in range(4)}
    assert len(hottest) > 1


def test_popularities_add_up_to_one():
    assert np.exp(log_popularity(Uniform(), crowd())).sum() == pytest.approx(1, abs=1e-5)
