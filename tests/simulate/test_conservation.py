"""What holds of every simulated cell: nothing lost on the way, no pair without an expert, more never slower."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulate.cells import cluster_of, make_cell
from workbench.comm.strategies import STRATEGIES
from workbench.run.simulated import run_simulated
from workbench.simulate.layer import price_layer
from workbench.simulate.traffic import group_traffic
from workbench.spec.errors import Unsupported

SKEWS = ["uniform", "balanced", {"kind": "power_law", "alpha": 1.2}, {"kind": "hot_rank", "factor": 4}]
SOURCES = ["even", {"kind": "ragged", "cv": 0.6}, {"kind": "empty_rank", "rank": 0}]
TRAVELLING = sorted(set(STRATEGIES) - {"none"})

cells = st.fixed_dictionaries(
    {
        "ep": st.sampled_from([2, 3, 4, 6, 8, 16]),
        "tokens": st.sampled_from([1, 5, 64, 300]),
        "skew": st.sampled_from(SKEWS),
        "dispatch": st.sampled_from([{"strategy": name} for name in TRAVELLING]),
        "workload": st.sampled_from([{"sources": sources} for sources in SOURCES]),
    }
)


def cluster(ranks: int, **links):
    per_node = next(size for size in (8, 4, 3, 2, 1) if ranks % size == 0 and size < ranks)
    one = cluster_of(gpus=ranks, gpus_per_node=per_node)
    if not links:
        return one
    up, out = one.hardware.scale_up, one.hardware.scale_out
    faster = {
        "scale_up": up.model_copy(update={"gb_per_s": up.gb_per_s * links["factor"]}),
        "scale_out": out.model_copy(update={"gb_per_s": out.gb_per_s * links["factor"]}),
    }
    return one.model_copy(update={"hardware": one.hardware.model_copy(update=faster)})


def traffic_of(arguments, **more):
    cell = make_cell("qwen3-30b-a3b", cluster=cluster(arguments["ep"]), **arguments, **more)
    try:
        return cell, group_traffic(cell)
    except Unsupported:
        return cell, None


@settings(max_examples=60, deadline=None)
@given(cells)
def test_what_is_sent_is_received_and_every_pair_is_computed(arguments):
    cell, traffic = traffic_of(arguments)
    if traffic is None:
        return
    tokens = traffic.tokens_R.sum()
    assert np.isclose(traffic.pairs_R.sum() + traffic.dropped_pairs, tokens * cell.model.top_k)
    assert np.isclose(traffic.expert_tokens_E.sum(), traffic.pairs_R.sum())
    for hop in traffic.hops:
        for link in ("up_R", "rail_R", "cross_R"):
            assert np.isclose(getattr(hop.sent, link).sum(), getattr(hop.received, link).sum()), (hop.name, link)
        assert (hop.sent_R >= 0).all()


@settings(max_examples=25, deadline=None)
@given(cells, st.sampled_from([1.5, 4.0]))
def test_faster_links_are_never_slower(arguments, factor):
    cell, traffic = traffic_of(arguments, method="roofline")
    if traffic is None:
        return
    slow = price_layer(cell, traffic).latency_us
    faster = cell.model_copy(update={"cluster": cluster(cell.ep, factor=factor)})
    assert price_layer(faster, traffic).latency_us <= slow * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 64, 4096]), st.sampled_from(SKEWS), st.sampled_from(TRAVELLING))
def test_one_rank_sends_nothing(tokens, skew, strategy):
    record = run_simulated(
        make_cell("qwen3-30b-a3b", ep=1, tokens=tokens, skew=skew, dispatch={"strategy": strategy})
    ).record
    assert record.status in ("ok", "unsupported")
    if record.status == "ok":
        names = ("wire_bytes", "physical_bytes", "scale_up_bytes", "scale_out_bytes")
        assert not any(getattr(record, name) for name in names)
