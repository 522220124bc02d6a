"""Ranks with fewer tokens than others, or none."""

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.plan import cell_labels, plan_cells
from workbench.spec.errors import Unsupported
from workbench.spec.identity import cell_id
from workbench.spec.scenario import Cell
from workbench.spec.scenario_file import parse_scenario
from workbench.spec.workload import Workload
from workbench.workload.data import rank_activations
from workbench.workload.loads import slot_counts
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import RoutedTraffic, rank_logits, rank_router, route_all, route_rank


def with_sources(sources, **fields) -> Cell:
    cell = make_cell(**fields)
    workload = cell.workload.model_dump() | {"sources": sources}
    return cell.model_copy(update={"workload": Workload.model_validate(workload)})


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0])
def test_ragged_sources_meet_their_spread(cv):
    tokens_R = source_tokens(with_sources({"kind": "ragged", "cv": cv}, ranks=32, tokens=4096))
    assert tokens_R.std() / tokens_R.mean() == pytest.approx(cv, rel=0.02)
    assert tokens_R.max() == 4096
    assert tokens_R.argmax() != 31, "the busiest rank is drawn"


def test_no_spread_and_one_rank_are_even():
    assert (source_tokens(with_sources({"kind": "ragged", "cv": 0.0}, tokens=17)) == 17).all()
    assert source_tokens(with_sources({"kind": "ragged", "cv": 0.0}, ranks=1, tokens=17)).tolist() == [17]
    assert source_tokens(with_sources("even", tokens=17)).tolist() == [17] * 4
    assert source_tokens(with_sources({"kind": "empty_rank", "rank": 2}, tokens=17)).tolist() == [17, 17, 0, 17]


def test_what_ranks_cannot_have_is_refused():
    with pytest.raises(Unsupported, match=r"sources.cv: 2.0 .* 4 ranks .* below 1.732"):
        source_tokens(with_sources({"kind": "ragged", "cv": 2.0}))
    with pytest.raises(Unsupported, match=r"sources\.rank: 4 is not among the 4 ranks"):
        source_tokens(with_sources({"kind": "empty_rank", "rank": 4}))


@pytest.mark.parametrize("skew", ["uniform", "balanced", {"kind": "zipf", "alpha": 1.0}])
@pytest.mark.parametrize("router", ["softmax_topk", "switch", "expert_choice", "hash", "random", "batch_prioritized"])
def test_every_rank_routes_its_own_tokens_only(skew, router):
    cell = with_sources({"kind": "ragged", "cv": 0.8}, tokens=24, skew=skew)
    cell = type(cell).model_validate(cell.model_dump() | {"router": {"kind": router}})
    tokens_R, traffic = source_tokens(cell), route_all(cell)
    np.testing.assert_array_equal(traffic.tokens_R, tokens_R)
    assert traffic.ids.shape[1] == 24
    for rank in range(4):
        count = tokens_R[rank]
        routing = route_rank(cell, rank=rank)
        np.testing.assert_array_equal(traffic.ids[rank, :count], routing.ids.numpy())
        assert (traffic.ids[rank, count:] == -1).all()
        assert (traffic.weights[rank, count:] == 0).all()
        assert len(rank_logits(cell, rank=rank)) == len(rank_activations(cell, rank=rank)) == count
        assert traffic.missing[rank, count:].sum() == 0
        assert len(rank_router(cell, rank=rank)(routing.weights.new_zeros(count, 64)).ids) == count
    if router == "softmax_topk":
        assert traffic.dropped_R.tolist() == [0, 0, 0, 0]
        kept = traffic.ids.size - tokens_R.sum() * 4
        assert (traffic.ids < 0).sum() == kept > 0
    if router == "switch":
        pairs = slot_counts(traffic.ids, 64).sum()
        assert traffic.dropped_R.sum() == 4 * tokens_R.sum() - pairs


def test_an_even_rank_has_the_tokens_that_it_had_before():
    even, ragged = make_cell(tokens=24), with_sources({"kind": "empty_rank", "rank": 1}, tokens=24)
    np.testing.assert_array_equal(route_all(even).ids[[0, 2, 3]], route_all(ragged).ids[[0, 2, 3]])
    assert (rank_activations(even, rank=3) == rank_activations(ragged, rank=3)).all()


def test_balanced_stays_even_with_ragged_sources():
    counts = slot_counts(route_all(with_sources({"kind": "ragged", "cv": 0.8}, tokens=33, skew="balanced")).ids, 64)
    assert np.ptp(counts) <= 1


@pytest.mark.parametrize("router", ["softmax_topk", "batch_prioritized"])
def test_samples_keep_the_proportions_of_the_ranks(router, monkeypatch):
    cell = with_sources({"kind": "ragged", "cv": 0.8}, tokens=4096, router="softmax_topk")
    cell = type(cell).model_validate(cell.model_dump() | {"router": {"kind": router}})
    for budget in (1 << 24, 4096 * 64 * 2):
        monkeypatch.setattr("workbench.workload.source._MAX_LIMITED_LOGITS", budget)
        part = route_all(cell, max_tokens=128)
        assert part.ids.shape[1] == 128
        np.testing.assert_allclose(part.tokens_R * 32, source_tokens(cell), atol=32)
        assert (part.ids[:, 0] >= 0).any(axis=1).all()
    steep = with_sources({"kind": "ragged", "cv": 1.6}, tokens=4096)
    assert sorted(source_tokens(steep).tolist()) == [0, 5, 249, 4096]
    assert sorted(route_all(steep, max_tokens=8).tokens_R.tolist()) == [0, 1, 1, 8], "a rank with any token keeps one"
    empty = route_all(with_sources({"kind": "empty_rank"}, tokens=4096), max_tokens=8)
    assert empty.tokens_R.tolist() == [0, 8, 8, 8]


def test_traffic_without_counts_is_full():
    traffic = RoutedTraffic(np.full((2, 3, 1), -1, np.int32), np.zeros((2, 3, 1), np.float32))
    assert traffic.tokens_R.tolist() == [3, 3]
    assert traffic.dropped_R.tolist() == [3, 3]


def test_even_sources_leave_ids_of_cells_as_they_were():
    values = {"workload": Workload()}
    assert cell_id(values) == cell_id({"workload": Workload.model_validate({"sources": "even"})}) == cell_id({})
    assert cell_id({"workload": Workload.model_validate({"sources": {"kind": "ragged"}})}) != cell_id({})


def test_labels_say_which_ranks_have_tokens():
    text = "model: mixtral-8x7b\nmatrix: {workload.sources: [even, {kind: ragged, cv: 0.8}, empty_rank]}\n"
    labels = cell_labels(plan_cells(parse_scenario(text, file="s.yaml")))
    assert [label.split(" ", 1)[0] for label in labels.values()] == ["even", "ragged", "empty_rank"]
