"""Skews keep the loads they promise, within 2% (or four standard deviations of what was counted, if that is more)."""

import numpy as np
import pytest

from tests.workload.factory import GROUPED, make_cell
from workbench.spec.errors import Unsupported
from workbench.spec.router import SoftmaxTopk
from workbench.spec.workload import PowerLaw, Topics, Uniform
from workbench.workload.counter import POPULARITY, uniform
from workbench.workload.drift import Walk, state
from workbench.workload.inclusion import inclusion, logs_of_loads
from workbench.workload.loads import slot_counts
from workbench.workload.logits import token_topics, topic_popularity
from workbench.workload.skew import SKEWS, Crowd, log_popularity, popularity
from workbench.workload.source import skew_flags
from workbench.workload.traffic import rank_logits, route_all

CLOSE = 0.02


def crowd(**changes) -> Crowd:
    return Crowd(**{"num_experts": 64, "top_k": 8, "num_ranks": 4, "num_tokens": 4096, "seed": 3, "layer": 0,
                    "step": 0} | changes)  # fmt: skip


def loads(skew, *, tokens=100_000, experts=16, top_k=4, step=0, layer=0, **fields) -> np.ndarray:
    cell = make_cell(tokens=tokens, experts=experts, top_k=top_k, skew=skew, **fields)
    return slot_counts(route_all(cell, step=step, layer=layer).ids, experts)


def assert_loads(got: np.ndarray, promised: np.ndarray) -> None:
    wanted = promised / promised.sum() * got.sum()
    assert (np.abs(got - wanted) <= np.maximum(CLOSE * wanted, 4 * np.sqrt(wanted + 1))).all(), (got, wanted)


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (16, 4), (64, 8), (12, 11), (5, 1)])
def test_promised_loads_come_out_of_the_sampling(experts, top_k):
    """The chances come from an integral; drawing with other noise than the workload's gives the same."""
    shares = np.linspace(1, 4, experts) ** (1 if top_k < 11 else 0.02)
    logs = logs_of_loads(shares, top_k)
    np.testing.assert_allclose(inclusion(np.exp(logs), top_k), shares / shares.sum() * top_k, rtol=1e-4)
    noisy = logs + np.random.default_rng(0).gumbel(size=(200_000, experts))
    taken = np.argpartition(-noisy, top_k - 1, axis=1)[:, :top_k]
    assert_loads(np.bincount(taken.ravel(), minlength=experts), shares)


def test_loads_above_one_a_token_are_cut_and_the_rest_keeps_its_proportions():
    shares = np.array([100.0, 1, 2, 3, 4, 5, 6, 7])
    chances = inclusion(np.exp(logs_of_loads(shares, 3)), 3)
    assert chances[0] == pytest.approx(0.999, abs=1e-4)
    np.testing.assert_allclose(chances[1:] / chances[1], np.arange(1, 8), rtol=1e-3)


def test_experts_without_load_are_never_taken():
    logs = logs_of_loads(np.array([0.0, 1, 2, 0, 1]), 2)
    assert np.exp(logs - logs.max())[[0, 3]].max() < 1e-24
    np.testing.assert_allclose(inclusion(np.exp(logs), 2), [0, 0.5, 1, 0, 0.5], atol=2e-3)
    with pytest.raises(ValueError, match="2 experts have a load, but a token takes top_k 3"):
        logs_of_loads(np.array([0.0, 1, 2]), 3)


@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.2])
def test_power_law_loads_follow_the_inverse_cdf(alpha):
    u = uniform(64, seed=3, purpose=POPULARITY, place=(0, 0))
    grid = np.linspace(1.0, 0.8 * 4096, 2_000_001)
    density = np.concatenate([[0], np.cumsum((grid[1:] ** -alpha + grid[:-1] ** -alpha) / 2)])
    drawn = np.interp(u, density / density[-1], grid)
    expected = drawn / drawn.sum() * 8
    reached = inclusion(np.exp(log_popularity(PowerLaw(alpha=alpha), crowd()).astype(float)), 8)
    kept = (expected < 0.9) & (expected > 0.001)
    ratio = reached[kept] / expected[kept]
    np.testing.assert_allclose(ratio, ratio[0], rtol=5e-3)


@pytest.mark.parametrize("alpha", [1.01, 1.2])
def test_routed_loads_follow_the_power_law(alpha):
    u = uniform(16, seed=4, purpose=POPULARITY, place=(0, 0))
    power, high = 1 - alpha, 0.8 * 400_000
    drawn = (1 + u * (high**power - 1)) ** (1 / power)
    assert 0.5 < drawn.max() / drawn.sum() * 2 < 0.9
    assert_loads(loads({"kind": "power_law", "alpha": alpha}, top_k=2, seed=4), drawn)


@pytest.mark.parametrize("target", [1.2, 2.0, 3.5])
def test_lognormal_meets_its_maximum_over_mean(target):
    got = loads({"kind": "lognormal", "max_over_mean": target})
    assert got.max() / got.mean() == pytest.approx(target, rel=CLOSE)


NARROW = {"kind": "softmax_group", "num_groups": 8, "topk_group": 2}


@pytest.mark.parametrize(("router", "reached"), [("softmax_topk", 3.5), ("sigmoid_topk", 3.5), (GROUPED, 3.5),
                                                  (NARROW, 2.96)])  # fmt: skip
def test_the_named_load_is_that_of_a_gate_over_all_experts_and_others_are_told(router, reached):
    """One traffic for all gates. Of those that leave groups out some bend the load by little, others by much."""
    skew = {"kind": "lognormal", "max_over_mean": 3.5}
    cell = make_cell(tokens=50_000, experts=32, top_k=4, skew=skew, router=router)
    got = slot_counts(route_all(cell).ids, 32)
    assert got.max() / got.mean() == pytest.approx(reached, rel=CLOSE)
    assert skew_flags(cell) == (["loads_bent_by_groups"] if router in (GROUPED, NARROW) else [])
    bare = make_cell(tokens=50_000, experts=32, top_k=4, skew=skew)
    np.testing.assert_array_equal(rank_logits(cell, rank=1), rank_logits(bare, rank=1))
    assert skew_flags(make_cell(skew={"kind": "zipf", "alpha": 1.0}, router=router)) == []
    assert skew_flags(make_cell(skew="power_law", router=router)) == skew_flags(cell)


def test_lognormal_has_its_sigma():
    got = np.log(loads({"kind": "lognormal", "sigma": 0.7}, experts=64, top_k=1))
    drawn = log_popularity(make_cell(skew={"kind": "lognormal", "sigma": 0.7}).workload.skew, crowd(seed=0, top_k=1))
    assert got.std() == pytest.approx(drawn.std(), rel=CLOSE)
    assert drawn.std() == pytest.approx(0.7, rel=0.2)  # of 64 draws


def test_lognormal_refuses_what_no_expert_can_take():
    with pytest.raises(Unsupported, match=r"between 1 and 3\.996"):
        loads({"kind": "lognormal", "max_over_mean": 4.5})


def rank_shares(per_expert: np.ndarray) -> np.ndarray:
    return per_expert.reshape(4, -1).sum(axis=1)


@pytest.mark.parametrize(("factor", "rank", "experts", "top_k"), [(1.0, 0, 16, 4), (3.0, 2, 16, 4), (2.0, 1, 8, 2),
                                                                 (12.0, 3, 64, 4)])  # fmt: skip
def test_hot_rank_gets_its_factor(factor, rank, experts, top_k):
    per_rank = rank_shares(loads({"kind": "hot_rank", "factor": factor, "rank": rank}, experts=experts, top_k=top_k))
    assert per_rank[rank] / np.delete(per_rank, rank).mean() == pytest.approx(factor, rel=CLOSE)


@pytest.mark.parametrize("factor", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("ranks", [2, 6, 16])
def test_hot_rank_gets_its_factor_through_a_gate_that_leaves_groups_out(factor, ranks):
    skew = {"kind": "hot_rank", "factor": factor, "rank": 1}
    cell = make_cell(ranks=ranks, tokens=160_000 // ranks, experts=48, top_k=4, skew=skew, router=GROUPED)
    per_expert = slot_counts(route_all(cell).ids, 48)
    hot = np.arange(48) * ranks // 48 == 1
    assert per_expert[hot].mean() / per_expert[~hot].mean() == pytest.approx(factor, rel=CLOSE)
    other = cell.model_copy(update={"router": SoftmaxTopk()})
    np.testing.assert_array_equal(rank_logits(cell, rank=0), rank_logits(other, rank=0))


def test_a_hot_rank_rotates_with_its_factor():
    for step, hot in ((0, 0), (2, 0), (3, 1), (11, 3), (12, 0)):
        per_rank = rank_shares(loads({"kind": "rotating_hot_rank", "factor": 2.5, "period": 3}, step=step))
        assert per_rank.argmax() == hot
        assert per_rank[hot] / np.delete(per_rank, hot).mean() == pytest.approx(2.5, rel=CLOSE)


def test_hot_rank_refuses_the_impossible():
    with pytest.raises(Unsupported, match="picks a token"):
        loads({"kind": "hot_rank", "factor": 100.0}, experts=16, top_k=8)
    with pytest.raises(Unsupported, match="rank"):
        loads({"kind": "hot_rank", "factor": 2.0, "rank": 4})


@pytest.mark.parametrize("router", ["softmax_topk", "topk_softmax", "sigmoid_topk", GROUPED, "cosine"])
def test_a_cold_rank_gets_nothing_and_the_others_the_same(router):
    cell = make_cell(tokens=10_000, experts=64, skew={"kind": "cold_rank", "rank": 2})
    cell = type(cell).model_validate(
        cell.model_dump() | {"router": {"kind": router} if isinstance(router, str) else router}
    )
    traffic = route_all(cell)
    assert np.isfinite(traffic.weights).all()
    per_rank = rank_shares(slot_counts(traffic.ids, 64))
    assert per_rank[2] == 0
    np.testing.assert_allclose(np.delete(per_rank, 2) / per_rank.sum(), 1 / 3, rtol=CLOSE)


def test_cold_rank_refuses_what_would_warm_it():
    with pytest.raises(Unsupported, match="12 are left, but a token takes top_k 13"):
        loads({"kind": "cold_rank"}, top_k=13, tokens=4)
    with pytest.raises(Unsupported, match="rank"):
        loads({"kind": "cold_rank", "rank": 4}, tokens=4)
    grouped = {"kind": "sigmoid_group", "num_groups": 2, "topk_group": 1}
    with pytest.raises(Unsupported, match="1 of the router's 2 groups may hold 4 experts, but a token takes top_k 6"):
        loads({"kind": "cold_rank"}, top_k=6, tokens=4, router=grouped)
    for kind in ("random", "expert_choice"):
        cell = make_cell(skew="cold_rank")
        with pytest.raises(Unsupported, match=f"router {kind}"):
            route_all(type(cell).model_validate(cell.model_dump() | {"router": {"kind": kind}}))


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_zipf_falls_as_a_power_and_hits_no_fixed_expert(alpha):
    skew = {"kind": "zipf", "alpha": alpha}
    ordered = np.sort(loads(skew, top_k=1, experts=32))[::-1]
    assert_loads(ordered, np.arange(1, 33) ** -alpha)
    hottest = {int(loads(skew, top_k=1, seed=seed, tokens=4000).argmax()) for seed in range(4)}
    assert len(hottest) > 1


def test_popularity_stays_over_steps_unless_it_is_said_to_move():
    for kind, skew in {"power_law": {}, "zipf": {}, "lognormal": {}, "hot_rank": {}, "cold_rank": {}}.items():
        one = make_cell(skew={"kind": kind} | skew).workload.skew
        np.testing.assert_array_equal(popularity(one, crowd()), popularity(one, crowd(step=9)))
    for kind in ("drift", "rotating_hot_rank"):
        one = make_cell(skew=kind).workload.skew
        assert (popularity(one, crowd()) != popularity(one, crowd(step=9))).any()
    for kind in ("power_law", "lognormal", "drift"):
        one = make_cell(skew=kind).workload.skew
        assert (popularity(one, crowd()) != popularity(one, crowd(layer=1))).any()


def drift_logs(step: int, *, sigma: float, rate: float) -> np.ndarray:
    skew = {"kind": "drift", "sigma": sigma, "rate": rate}
    return np.log(loads(skew, top_k=1, experts=32, step=step, layer=1, seed=5, tokens=200_000))


def test_drift_has_its_sigma_and_forgets_at_its_rate():
    before, after = drift_logs(6, sigma=0.5, rate=0.2), drift_logs(7, sigma=0.5, rate=0.2)
    assert before.std() == pytest.approx(0.5, rel=CLOSE)
    assert after.std() == pytest.approx(0.5, rel=CLOSE)
    assert np.corrcoef(before, after)[0, 1] == pytest.approx(np.exp(-0.2), rel=CLOSE)
    far = [state(Walk(256, np.exp(-0.05), 0, layer), step) for layer in range(8) for step in (0, 10)]
    apart = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(far[::2], far[1::2], strict=True)])
    assert apart == pytest.approx(np.exp(-0.5), rel=0.06)  # 8 walks of 256 experts: a standard deviation of 0.017


def test_drift_without_rate_stands_still_and_does_not_depend_on_who_asked_before():
    np.testing.assert_allclose(state(Walk(16, 1.0, 0, 0), 500), state(Walk(16, 1.0, 0, 0), 0), atol=1e-6)
    straight = state(Walk(16, 0.9, 3, 0), 130)
    for step in range(0, 130, 17):
        state(Walk(16, 0.9, 3, 0), step)
    np.testing.assert_array_equal(straight, state(Walk(16, 0.9, 3, 0), 130))
    for experts in (1, 2, 3):
        assert np.isfinite(state(Walk(experts, 0.9, 0, 0), 5)).all()


def test_tokens_of_a_sequence_share_a_topic_with_its_strength():
    skew = Topics(num_topics=3, strength=0.8, sequence_tokens=100, correlation=0.0)
    cell = make_cell(tokens=200_000, experts=16, top_k=1, skew=skew.model_dump())
    traffic, group = route_all(cell, layer=2, step=1), crowd(num_experts=16, seed=0, layer=2, step=1)
    counts = np.zeros((3, 16))
    for rank in range(4):
        topics = token_topics(skew, group, rank=rank, rows=200_000)
        assert (topics.reshape(-1, 100) == topics[::100, None]).all()
        np.add.at(counts, (topics, traffic.ids[rank, :, 0]), 1)
    np.testing.assert_allclose(np.log(counts).std(axis=1), 0.8, rtol=CLOSE)
    wanted = np.exp(topic_popularity(skew, group))
    for topic in range(3):
        assert_loads(counts[topic], wanted[topic])
    np.testing.assert_allclose(counts.sum(axis=1) / counts.sum(), 1 / 3, rtol=0.1)  # 8000 sequences


def test_neighbours_of_a_sequence_are_correlated():
    skew = Topics(num_topics=2, strength=0.0, sequence_tokens=64, correlation=0.6)
    logits = rank_logits(make_cell(tokens=64_000, experts=16, skew=skew.model_dump()), rank=1)
    noise = (logits - logits.mean()).reshape(1000, 64, 16)
    for apart in (1, 2):
        pairs = noise[:, apart:].ravel(), noise[:, :-apart].ravel()
        assert np.corrcoef(*pairs)[0, 1] == pytest.approx(0.6**apart, rel=CLOSE)
    assert abs(np.corrcoef(noise[1:, 0].ravel(), noise[:-1, -1].ravel())[0, 1]) < 0.03, "sequences are independent"
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.02, "experts are independent"
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=CLOSE)


def test_a_token_keeps_its_topic_over_layers():
    skew = Topics()
    group = crowd()
    first = token_topics(skew, group, rank=0, rows=500)
    np.testing.assert_array_equal(first, token_topics(skew, crowd(layer=7), rank=0, rows=500))
    assert (first != token_topics(skew, crowd(step=1), rank=0, rows=500)).any()
    assert (first != token_topics(skew, group, rank=1, rows=500)).any()


def test_popularities_add_up_to_one():
    assert np.exp(log_popularity(Uniform(), crowd())).sum() == pytest.approx(1, abs=1e-5)
    assert set(SKEWS) >= {"uniform", "power_law", "zipf", "lognormal", "hot_rank", "rotating_hot_rank", "cold_rank"}
