"""Every router in a scenario: capacity counted by source rank, token ids for the hash, honest samples."""

import numpy as np
import pytest
import torch

from kernels.routing import ROUTERS, slot_limit
from tests.workload.factory import make_cell
from workbench.spec.dispatch import Balance
from workbench.spec.errors import Unsupported
from workbench.spec.router import Hash
from workbench.spec.scenario import Cell
from workbench.workload import source
from workbench.workload.loads import slot_counts
from workbench.workload.logits import Batch, token_topics
from workbench.workload.skew import Crowd
from workbench.workload.token_ids import token_ids
from workbench.workload.traffic import rank_logits, rank_router, route_all, routing_width

ZIPF = {"kind": "zipf", "alpha": 1.0}


def cell_of(router, *, capacity=None, **fields) -> Cell:
    cell = make_cell(**{"tokens": 48, "experts": 16, "top_k": 3, "ranks": 4} | fields)
    return Cell.model_validate(cell.model_dump() | {"router": router, "balance": Balance(capacity=capacity)})


@pytest.mark.parametrize("capacity", [None, 0.75])
@pytest.mark.parametrize("kind", ROUTERS)
def test_every_router_routes_and_the_gate_of_a_rank_does_the_same(kind, capacity):
    cell = cell_of(kind, capacity=capacity, skew=ZIPF)
    routed = route_all(cell)
    width = 16 if kind == "expert_choice" else 3
    assert routed.ids.shape == routed.weights.shape == (4, 48, width)
    assert routing_width(cell) == width
    assert routed.ids.min() >= -1
    assert routed.ids.max() < 16
    assert (routed.weights[routed.ids < 0] == 0).all()
    for token in routed.ids.reshape(-1, width):
        kept = token[token >= 0]
        assert np.unique(kept).size == kept.size
    for rank in (0, 3):
        gate = rank_router(cell, rank=rank)(torch.from_numpy(rank_logits(cell, rank=rank)))
        np.testing.assert_array_equal(gate.ids.numpy(), routed.ids[rank])
        np.testing.assert_array_equal(gate.weights.numpy(), routed.weights[rank])


@pytest.mark.parametrize("factor", [1.0, -1.0, 0.4])
def test_capacity_holds_for_each_source_rank(factor):
    free, tight = cell_of("softmax_topk", skew=ZIPF), cell_of("softmax_topk", skew=ZIPF, capacity=factor)
    limit = slot_limit(num_tokens=48, num_experts=16, top_k=3, capacity_factor=factor)
    wanted, kept = route_all(free).ids, route_all(tight)
    for rank in range(4):
        counts, left = slot_counts(wanted[rank], 16), slot_counts(kept.ids[rank], 16)
        np.testing.assert_array_equal(left, np.minimum(counts, limit))
        assert kept.dropped_R[rank] == counts.sum() - left.sum()
    assert kept.dropped_R.min() > 0
    np.testing.assert_array_equal(kept.ids[kept.ids >= 0], wanted[kept.ids >= 0])


def test_capacity_zero_drops_nothing_and_is_the_traffic_without():
    assert route_all(cell_of("softmax_topk", capacity=0.0)) is route_all(cell_of("softmax_topk"))
    assert route_all(cell_of("softmax_topk")).dropped_R.sum() == 0


def test_expert_choice_is_balanced_whatever_the_skew():
    routed = route_all(cell_of("expert_choice", skew=ZIPF))
    for rank in range(4):
        assert (slot_counts(routed.ids[rank], 16) == 9).all()  # 3 * 48 / 16
        untouched = (routed.ids[rank] < 0).all(axis=1).sum()
        assert routed.dropped_R[rank] == untouched
    bounded = cell_of({"kind": "expert_choice", "max_experts": 4}, skew=ZIPF)
    assert route_all(bounded).ids.shape == (4, 48, 4)


@pytest.mark.parametrize("router", ["softmax_topk", "switch", "batch_prioritized", "expert_choice"])
def test_a_sample_keeps_as_many_pairs_a_token_as_the_whole(router, monkeypatch):
    """A sample of few tokens with a capacity of its own would not: its loads are noise."""
    capacity = 1.0 if router == "softmax_topk" else None
    cell = cell_of(router, capacity=capacity, tokens=2048, experts=64, top_k=4, ranks=8, skew=ZIPF)
    whole = route_all(cell)
    kept = (whole.ids >= 0).sum() / (8 * 2048)
    for budget in (1 << 24, 3 * 2048 * 64):
        monkeypatch.setattr(source, "_MAX_LIMITED_LOGITS", budget)
        part = route_all(cell, max_tokens=256)
        assert part.ids.shape[:2] == (8, 256)
        assert (part.ids >= 0).sum() / (8 * 256) == pytest.approx(kept, abs=0.1)
    assert kept == 4 if router == "expert_choice" else kept < 3.5
    assert not np.array_equal(part.ids[0], part.ids[3]), "ranks that share a routing tell different tokens of it"
    np.testing.assert_array_equal(part.ids[3], whole.ids[0][(np.arange(256) * 8 + 1) % 2048])


def test_tokens_have_their_ids_in_every_layer_and_others_in_every_rank_and_step():
    cell = cell_of("hash", tokens=400, skew=ZIPF)
    first = route_all(cell).ids
    np.testing.assert_array_equal(first, route_all(cell, layer=3).ids)
    assert (first != route_all(cell, step=1).ids).any()
    assert (first[0] != first[1]).any()


def test_the_hash_router_feels_the_skew_of_the_words():
    def worst(skew) -> float:
        ids = route_all(cell_of("hash", tokens=1000, skew=skew)).ids
        counts = slot_counts(ids, 16)
        return counts.max() / counts.mean()

    assert worst("uniform") < 1.1
    assert worst("balanced") < 1.1
    assert worst({"kind": "zipf", "alpha": 1.5}) > 1.5
    for kind in ("hot_rank", "rotating_hot_rank", "cold_rank"):
        with pytest.raises(Unsupported, match=f"{kind} speaks of experts"):
            route_all(cell_of("hash", skew={"kind": kind}))


def test_tokens_of_a_topic_share_words():
    skew = {"kind": "topics", "num_topics": 4, "strength": 3.0, "sequence_tokens": 50, "correlation": 0.4}
    topics = make_cell(skew=skew).workload.skew
    crowd = Crowd(num_experts=16, top_k=3, num_ranks=1, num_tokens=20_000, seed=0, layer=0, step=0)
    ids = token_ids(topics, crowd, Batch(Hash(), 0, 20_000, 0, 0), vocabulary=100_000).reshape(-1, 50)
    same = (ids[:, 1:] == ids[:, :-1]).mean()
    assert 0.39 < same < 0.43
    first = token_topics(topics, crowd, rank=0, rows=20_000)[::50]
    words = [set(ids[first == topic].ravel().tolist()) for topic in range(2)]
    assert len(words[0] & words[1]) < 0.25 * min(map(len, words))


def test_ids_follow_the_popularity_of_the_vocabulary():
    crowd = Crowd(num_experts=16, top_k=3, num_ranks=2, num_tokens=20_000, seed=0, layer=5, step=0)
    cell = make_cell(skew={"kind": "zipf", "alpha": 1.0})
    batches = [Batch(Hash(), rank, 10_000, 10_000 * rank, 10_000 * rank) for rank in range(2)]
    ids = np.concatenate([token_ids(cell.workload.skew, crowd, batch, vocabulary=100) for batch in batches])
    shares = np.sort(np.bincount(ids, minlength=100))[::-1] / ids.size
    expected = 1 / np.arange(1, 101)
    np.testing.assert_allclose(shares[:10], (expected / expected.sum())[:10], rtol=0.1)
    balanced = make_cell(skew="balanced").workload.skew
    dealt = [token_ids(balanced, crowd, batch, vocabulary=7) for batch in batches]
    assert dealt[1][0] == 10_000 % 7
    assert np.ptp(np.bincount(np.concatenate(dealt))) <= 1
