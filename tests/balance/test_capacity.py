"""Figures of capacity: the same drops as the router's own, and the least factor for a share."""

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.balance.capacity import drop_curve, drops, least_capacity, source_counts
from workbench.spec.dispatch import Balance
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import route_all

SKEWED = {"ranks": 4, "experts": 16, "tokens": 100, "skew": {"kind": "zipf", "alpha": 1.0}}
RAGGED = {"kind": "ragged", "cv": 0.5}


def limited(cell, factor):
    return route_all(cell.model_copy(update={"balance": Balance(capacity=factor)}))


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0, 1.1, 2.0, -1.0, 0.0, 8.0])
@pytest.mark.parametrize("sources", [None, RAGGED])
def test_drops_are_those_of_the_routing_itself(factor, sources):
    cell = make_cell(**SKEWED)
    if sources:
        workload = cell.workload.model_validate(cell.workload.model_dump() | {"sources": sources})
        cell = cell.model_copy(update={"workload": workload})
    counts, tokens = source_counts(route_all(cell), 16), source_tokens(cell)
    found, traffic = drops(counts, tokens, top_k=4, capacity_factor=factor), limited(cell, factor)
    np.testing.assert_array_equal(found.by_rank, traffic.dropped_R)
    np.testing.assert_array_equal(found.by_expert, (counts - source_counts(traffic, 16)).sum(axis=0))
    assert found.share == pytest.approx(traffic.dropped_R.sum() / counts.sum())


def test_more_capacity_drops_less_and_pads_more():
    cell = make_cell(**SKEWED)
    counts = source_counts(route_all(cell), 16)
    curve = drop_curve(counts, source_tokens(cell), top_k=4, factors=(0.5, 1.0, 1.5, 2.0, 3.0))
    shares, padding = [one.share for one in curve], [one.padding for one in curve]
    assert shares == sorted(shares, reverse=True)
    assert padding == sorted(padding)
    assert shares[0] > shares[-1]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5])
def test_the_least_factor_keeps_the_share_and_a_smaller_one_does_not(share):
    cell = make_cell(**SKEWED)
    counts, tokens = source_counts(route_all(cell), 16), source_tokens(cell)
    factor = least_capacity(counts, tokens, top_k=4, drop_share=share)
    assert drops(counts, tokens, top_k=4, capacity_factor=factor).share <= share
    assert limited(cell, factor).dropped_R.sum() <= share * counts.sum()
    below = factor - 1 / 7 - 1e-6  # ceil(100 / 16) = 7 steps a unit
    assert drops(counts, tokens, top_k=4, capacity_factor=below).share > share


def test_by_hand_and_what_is_refused():
    counts = np.array([[6, 2, 0, 0]])
    assert least_capacity(counts, np.array([8]), top_k=1) == 3.0
    assert least_capacity(counts, np.array([8]), top_k=1, drop_share=0.5) == 1.0
    assert least_capacity(np.zeros((1, 4), int), np.array([0]), top_k=1) == 1.0
    one = drops(counts, np.array([8]), top_k=1, capacity_factor=1.0)
    assert one.dropped_RE.tolist() == [[4, 0, 0, 0]]
    assert one.padding == 0.5
    with pytest.raises(ValueError, match="drop_share: 2"):
        least_capacity(counts, np.array([8]), top_k=1, drop_share=2)


def test_a_factor_without_an_end_in_decimals_is_rounded_up():
    counts, tokens = np.array([[1, 1, 1, 1, 1, 1, 1, 5]]), np.array([24])
    factor = least_capacity(counts, tokens, top_k=1, drop_share=0.0)
    assert factor == pytest.approx(5 / 3)
    assert factor > 5 / 3
    assert drops(counts, tokens, top_k=1, capacity_factor=factor).share == 0
