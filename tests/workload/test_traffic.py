"""Routed traffic: sampling without replacement, honest uniformity, the same bytes everywhere."""

import hashlib

import numpy as np
import pytest

from kernels.routing import ROUTERS
from tests.workload.factory import GROUPED, make_cell
from workbench.spec.errors import Unsupported
from workbench.spec.router import Random, Recorded
from workbench.workload import counter
from workbench.workload.loads import slot_counts
from workbench.workload.traffic import rank_logits, route_all, route_rank

SKEWS = (
    "uniform",
    "balanced",
    {"kind": "power_law", "alpha": 1.2},
    {"kind": "zipf", "alpha": 1.5},
    {"kind": "lognormal", "sigma": 2.0},
    {"kind": "lognormal", "max_over_mean": 1.0},
    {"kind": "hot_rank", "factor": 1.0},
    "topics",
    "drift",
)

DROPPING = {"switch", "batch_prioritized", "expert_choice"}


def _distinct(ids: np.ndarray) -> bool:
    ordered = np.sort(ids.reshape(-1, ids.shape[-1]), axis=1)
    return bool((ordered[:, 1:] != ordered[:, :-1]).all())


@pytest.mark.parametrize("skew", SKEWS, ids=str)
def test_b17_no_expert_twice_under_any_distribution(skew):
    cell = make_cell(ranks=1, tokens=1000, experts=8, top_k=8, skew=skew)
    ids = route_rank(cell, rank=0).ids.numpy()
    assert ids.shape == (1000, 8)
    assert (np.sort(ids, axis=1) == np.arange(8)).all()


def test_b19_skew_none_is_not_skewed_by_accident():
    routers = ({"kind": "topk_softmax", "router_bias": True}, {"kind": "sigmoid_group", "correction_bias": True})
    touched = [
        np.unique(route_rank(make_cell(ranks=1, tokens=32, experts=128, top_k=8, router=r, seed=seed), rank=0).ids).size
        for r in routers
        for seed in range(20)
    ]
    assert all(100 <= count <= 123 for count in touched), touched
    assert abs(np.mean(touched) - 128 * (1 - (1 - 8 / 128) ** 32)) < 1.5


def test_logits_are_the_same_bytes_everywhere():
    digests = []
    for skew in ("uniform", "balanced", {"kind": "power_law", "alpha": 1.01}):
        logits = rank_logits(make_cell(skew=skew, seed=7), rank=3, layer=2, step=5)
        assert logits.dtype == np.float32
        digests.append(hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()[:16])
    assert digests == ["b453fdc63183f4c9", "0d80e2fdefed1fed", "42296d0a097369ae"]


def test_streams_differ_by_rank_layer_step_and_seed():
    cell = make_cell()
    logits = [
        rank_logits(cell, rank=0),
        rank_logits(cell, rank=1),
        rank_logits(cell, rank=0, layer=1),
        rank_logits(cell, rank=0, step=1),
        rank_logits(make_cell(seed=1), rank=0),
    ]
    assert len({part.tobytes() for part in logits}) == len(logits)


def test_own_logarithms_are_logarithms():
    x = np.concatenate([1 - np.logspace(-9, -0.01, 1000), np.logspace(-9, 9, 1000)])
    np.testing.assert_allclose(counter._log64(x.copy()), np.log(x), rtol=1e-9)
    wide = x.astype(np.float32)
    np.testing.assert_allclose(counter._log32(wide.copy()), np.log(wide.astype(float)), rtol=3e-7, atol=1e-7)


def test_normal_numbers_are_standard():
    drawn = counter.normal(100_000, seed=1, purpose=counter.POPULARITY, place=(0,))
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.005
    assert abs((drawn**4).mean() - 3) < 0.1


def test_gumbel_noise_has_its_mean_and_variance():
    noise = counter.gumbel(1000, 1000, seed=1, purpose=counter.TOKENS, place=(0,))
    assert abs(noise.mean() - 0.5772) < 0.005
    assert abs(noise.var() - np.pi**2 / 6) < 0.01


@pytest.mark.parametrize("kind", sorted(set(ROUTERS) - DROPPING - {"random", "hash"}))
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_balanced_deals_evenly_through_every_router(kind, tokens):
    groups = {"num_groups": 8, "topk_group": 3} if kind.endswith("group") else {}
    cell = make_cell(tokens=tokens, experts=64, top_k=6, ranks=8, skew="balanced")
    cell = type(cell).model_validate(cell.model_dump() | {"router": {"kind": kind} | groups})
    counts = slot_counts(route_all(cell).ids, 64)
    assert counts.sum() == 8 * tokens * 6
    assert counts.max() - counts.min() <= 1
    assert (counts > 0).sum() == min(64, 8 * tokens * 6)
    assert _distinct(route_all(cell).ids)


def test_balanced_keeps_ranks_even_when_tokens_are_few():
    cell = make_cell(tokens=1, experts=256, top_k=8, ranks=8, skew="balanced")
    ids = route_all(cell).ids
    assert (np.bincount(ids.ravel() // 32, minlength=8) == 8).all()
    per_token = [np.unique(token // 32).size for token in ids.reshape(-1, 8)]
    assert np.mean(per_token) < 7  # tokens do not all meet every rank, or deduplication would look useless


def test_balanced_refuses_groups_it_cannot_keep():
    router = {"kind": "softmax_group", "num_groups": 8, "topk_group": 1}
    with pytest.raises(Unsupported, match="balanced cannot deal top_k 6"):
        route_all(make_cell(skew="balanced", experts=64, top_k=6, router=router))


def test_routers_that_are_not_there_are_unsupported():
    with pytest.raises(Unsupported, match="recorded"):
        route_all(make_cell().model_copy(update={"router": Recorded()}))


def test_zero_tokens_work():
    for skew in SKEWS[:5]:
        traffic = route_all(make_cell(tokens=0, skew=skew))
        assert traffic.ids.shape == (4, 0, 4)


def test_sampled_tokens_are_those_of_the_full_traffic():
    cell = make_cell(tokens=64, skew={"kind": "power_law", "alpha": 1.2}, router=GROUPED)
    full, part = route_all(cell), route_all(cell, max_tokens=10)
    assert part.ids.shape == (4, 10, 4)
    np.testing.assert_array_equal(part.ids, full.ids[:, :10])
    np.testing.assert_array_equal(part.weights, full.weights[:, :10])


def test_traffic_is_cached_over_what_does_not_matter_and_read_only():
    cell = make_cell(seed=11)
    other = make_cell(seed=11, dispatch={"strategy": "node_dedup"}, gpus_per_node=4)
    assert route_all(cell) is route_all(other)
    assert route_all(cell) is not route_all(make_cell(seed=12))
    with pytest.raises(ValueError, match="read-only"):
        route_all(cell).ids[0, 0, 0] = 1


def test_routing_of_one_rank_is_that_of_all():
    cell = make_cell(router=GROUPED, skew="zipf")
    for rank in range(4):
        np.testing.assert_array_equal(route_rank(cell, rank=rank).ids.numpy(), route_all(cell).ids[rank])


def test_random_router_ignores_skew_and_differs_by_rank():
    cell = make_cell(tokens=400, router="softmax_topk", skew={"kind": "zipf", "alpha": 3.0})
    cell = cell.model_copy(update={"router": Random()})
    ids = route_all(cell).ids
    assert _distinct(ids)
    assert slot_counts(ids, 64).min() > 50  # mean 100
    assert (ids[0] != ids[1]).any()
