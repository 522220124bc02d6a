"""Counts of sampled tokens scaled up: sums kept, chance taken out, skew left in."""

import numpy as np
import pytest

from tests.simulate.cells import make_cell
from workbench.simulate import traffic as module
from workbench.simulate.sampling import full_counts
from workbench.simulate.traffic import count_traffic, group_traffic
from workbench.workload.traffic import route_all


def test_scaling_keeps_the_sum_and_leaves_whole_batches_alone():
    counts = np.random.default_rng(0).poisson(30, 200)
    assert full_counts(counts, scale=7.0).sum() == pytest.approx(7 * counts.sum())
    np.testing.assert_array_equal(full_counts(counts, scale=1.0), counts)
    assert full_counts(np.zeros(4), scale=3.0).tolist() == [0, 0, 0, 0]


def test_chance_shrinks_and_skew_stays():
    random = np.random.default_rng(1)
    scatter = random.poisson(32, 256)
    full = full_counts(scatter, scale=64)
    assert scatter.max() / scatter.mean() > 1.3
    assert full.max() / full.mean() < 1.15
    shares = np.array([4.0] + [1.0] * 15)
    skewed = full_counts(random.poisson(500 * shares), scale=64)
    assert skewed[0] / skewed.mean() == pytest.approx(4 / shares.mean(), rel=0.05)


@pytest.mark.parametrize("skew", ["uniform", {"kind": "power_law", "alpha": 1.01}])
def test_a_sampled_group_looks_like_the_whole_one(skew):
    cell = make_cell(ep=64, tokens=512, skew=skew)
    whole, sampled = count_traffic(cell, route_all(cell)), group_traffic(cell)
    assert sampled.scale == 512 / sampled.sampled_tokens > 4
    assert whole.scale == 1
    assert sampled.pairs_R.sum() == pytest.approx(whole.pairs_R.sum())
    assert sampled.pairs_R.max() == pytest.approx(whole.pairs_R.max(), rel=0.1)
    for few, all_of in zip(sampled.hops, whole.hops, strict=True):
        assert few.out_received_R.max() == pytest.approx(all_of.out_received_R.max(), rel=0.1)
        assert few.sent.messages_R.mean() == pytest.approx(all_of.sent.messages_R.mean(), rel=0.1)


def test_counts_are_shared_between_precisions(monkeypatch):
    first = group_traffic(make_cell(tokens=96))

    def refuse(*_, **__):
        raise AssertionError("routed again")

    monkeypatch.setattr(module, "route_all", refuse)
    other = make_cell(tokens=96, precision="nvfp4", dispatch={"dispatch_dtype": "nvfp4"})
    assert group_traffic(other) is first
    with pytest.raises(AssertionError, match="routed again"):
        group_traffic(make_cell(tokens=97))
