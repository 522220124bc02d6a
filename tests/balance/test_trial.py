"""The EPLB figure: 58 layers of 256 experts on 32 ranks under a steep power law, judged on steps that did not place."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from tests.workload.factory import make_cell
from workbench.balance.copies import packable_copies
from workbench.balance.expert_map import even_rank_loads
from workbench.balance.placement import place, to_slots
from workbench.balance.trial import drawn_counts, judge, layer_chances
from workbench.spec.workload import PowerLaw
from workbench.workload.loads import rank_counts, slot_counts
from workbench.workload.skew import Crowd
from workbench.workload.traffic import route_all

EXPERTS, RANKS, TOKENS, LAYERS = 256, 32, 4096, 58


def crowd_of(layer, step=0, *, experts=EXPERTS, ranks=RANKS, tokens=TOKENS, top_k=8):
    return Crowd(num_experts=experts, top_k=top_k, num_ranks=ranks, num_tokens=ranks * tokens, seed=0, layer=layer,
                 step=step)  # fmt: skip


@lru_cache(maxsize=1)
def chances():
    return [layer_chances(PowerLaw(alpha=1.2), crowd_of(layer)) for layer in range(LAYERS)]


def counts(step):
    return np.array([drawn_counts(chance, crowd_of(layer, step)) for layer, chance in enumerate(chances())])


def test_eplb_evens_58_layers_on_steps_that_did_not_place():
    placing, judging = sum(counts(step) for step in range(4)), np.array([counts(step) for step in (4, 5, 6)])
    trial = judge(placing, judging, num_ranks=RANKS, kind="eplb", redundant=32)
    assert trial.before_L.mean() >= 2
    assert trial.after_L.mean() <= 1.10
    assert trial.after_L.mean() < 1.04
    again = judge(placing, judging, num_ranks=RANKS, kind="eplb", redundant=32)  # other work may hold up one of them
    assert min(trial.seconds, again.seconds) < 1
    assert len(trial.maps) == LAYERS
    assert all(one.slots.shape == (RANKS, 9) for one in trial.maps)
    published = judge(placing, judging, num_ranks=RANKS, kind="greedy", redundant=32)
    assert trial.after_L.mean() < published.after_L.mean() - 0.03


def test_drawn_counts_agree_with_routed_ones():
    """One layer, every token of 32 ranks routed: the same loads, and the same figure for the placed ranks."""
    cell = make_cell(ranks=RANKS, experts=EXPERTS, top_k=8, tokens=1024, skew={"kind": "power_law", "alpha": 1.2})
    crowd = crowd_of(0, tokens=1024)
    chance = layer_chances(PowerLaw(alpha=1.2), crowd)
    drawn = drawn_counts(chance, replace(crowd, step=1))
    ids = route_all(cell, step=1).ids
    routed = slot_counts(ids, EXPERTS)
    spread = np.sqrt(crowd.num_tokens * chance * (1 - chance)) + 1
    assert np.abs((routed - crowd.num_tokens * chance) / spread).max() < 5
    assert np.abs((drawn - crowd.num_tokens * chance) / spread).max() < 5
    expert_map = place(EXPERTS, RANKS, kind="eplb", redundant=32, loads=drawn_counts(chance, crowd))
    dealt = rank_counts(to_slots(expert_map, ids), num_ranks=RANKS, slots_per_rank=9)
    loads = even_rank_loads(expert_map, drawn)
    assert dealt.max() / dealt.mean() == pytest.approx(loads.max() / loads.mean(), abs=0.02)


def test_copies_are_moved_to_where_they_pack():
    """Of 4.2 on four ranks a hot 2 in three parts leaves one of them beside a 1; in halves each fills a rank by itself,
    and the copy that is free goes to a 1."""
    loads = np.array([2.0, 1.0, 1.0, 0.02, 0.02, 0.02, 0.02, 0.0])
    moved = packable_copies(loads, np.array([3, 1, 1, 1, 1, 1, 1, 1]), 4)
    assert moved.tolist() == [2, 2, 1, 1, 1, 1, 1, 1]
    even = np.array([1, 2, 1, 1, 1, 1, 1, 1])
    assert packable_copies(np.ones(8), even, 9).sum() == 9


def test_no_expert_has_more_copies_than_ranks_while_others_lack_one():
    loads = np.array([215.0, 5, 1, 1, 0, 0, 0, 0])
    for kind in ("greedy", "eplb"):
        expert_map = place(8, 4, kind=kind, redundant=4, loads=loads)
        assert expert_map.copies_E[0] == 4
        assert expert_map.copies_E[1] == 2
        assert all(np.unique(row).size == row.size for row in expert_map.slots)


def test_a_layer_without_load_is_placed_and_is_even():
    trial = judge(np.zeros((1, 8)), np.zeros((1, 1, 8)), num_ranks=4, kind="eplb", redundant=4)
    assert trial.after_L.tolist() == [1.0]
    assert set(trial.maps[0].slots.ravel().tolist()) == set(range(8))
