"""Ranks with fewer tokens than others, or none, on real gloo ranks: run, checked, and counted as they are."""

import pytest

from tests.run.rank_gang import cell, model, run_gang
from workbench.run.measured import merge_reports
from workbench.run.simulated import run_simulated
from workbench.spec.dispatch import ChunkOverlap
from workbench.spec.scenario import LayerScope
from workbench.spec.workload import Workload
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import route_all


def with_sources(one, sources):
    return one.model_copy(
        update={"workload": Workload.model_validate(one.workload.model_dump() | {"sources": sources})}
    )


def in_chunks(one, degree):
    overlapped = one.dispatch.model_copy(update={"overlap": ChunkOverlap(kind="chunk", degree=degree)})
    return one.model_copy(update={"dispatch": overlapped})


RAGGED = {"kind": "ragged", "cv": 0.7}
EMPTY = {"kind": "empty_rank", "rank": 1}
CELLS = [
    with_sources(cell(strategy="flat"), RAGGED),
    with_sources(cell(strategy="node_dedup", dtype="fp8_block", precision="fp8_block"), RAGGED),
    with_sources(cell(strategy="flat"), EMPTY),
    with_sources(cell(strategy="node_dedup", skew={"kind": "cold_rank", "rank": 2}, moe=model(shared=False)), EMPTY),
    with_sources(cell(strategy="none"), RAGGED),
    with_sources(cell(strategy="flat", scope=LayerScope(kind="layer_no_router")), RAGGED),
    in_chunks(with_sources(cell(strategy="flat"), RAGGED), 3),
    in_chunks(with_sources(cell(strategy="node_dedup"), EMPTY), 2),
    with_sources(cell(strategy="flat", scope=LayerScope(kind="train_step")), RAGGED),
    with_sources(cell(strategy="node_dedup", scope=LayerScope(kind="train_step")), EMPTY),
]
FAULTY = (with_sources(cell(strategy="flat"), EMPTY), "dispatch")


@pytest.fixture(scope="module")
def outcomes():
    gang = run_gang([FAULTY, *((one, None) for one in CELLS)])
    return [(one, reports, merge_reports(one, reports)) for one, reports in zip([FAULTY[0], *CELLS], gang, strict=True)]


def test_ragged_layers_pass_the_gate_and_count_their_tokens(outcomes):
    for one, reports, outcome in outcomes[1:]:
        record = outcome.record
        assert record.status == "ok", record.reason
        tokens_R, traffic = source_tokens(one), route_all(one)
        assert record.tokens_per_s == pytest.approx(tokens_R.sum() / record.latency_us * 1e6)
        assert record.dropped_tokens == 0
        assert sum(report.pairs for report in reports) == tokens_R.sum() * one.model.top_k
        assert (traffic.ids >= 0).sum() == tokens_R.sum() * one.model.top_k


def test_a_fault_beside_an_empty_rank_is_found(outcomes):
    record = outcomes[0][2].record
    assert record.status == "error"
    assert "rank 2: dispatch delivered" in record.reason


def test_one_rank_of_a_ragged_group_alone():
    from workbench.run.context import open_context
    from workbench.run.measured import run_rank

    alone = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    one = with_sources(cell(measured=(2,), strategy="none"), RAGGED)
    report = run_rank(one, alone)
    assert report.status == "ok", report.reason
    assert report.pairs == int((route_all(one).ids // 4 == 2).sum())


def test_simulated_rates_are_of_the_real_tokens():
    even = cell(tokens=4096, engine="simulate")
    ragged = with_sources(even, {"kind": "ragged", "cv": 0.9})
    empty = with_sources(even, EMPTY)
    records = {name: run_simulated(one).record for name, one in (("even", even), ("ragged", ragged), ("empty", empty))}
    assert all(record.status == "ok" for record in records.values()), [r.reason for r in records.values()]
    for name, one in (("ragged", ragged), ("empty", empty)):
        record = records[name]
        assert record.tokens_per_s == pytest.approx(source_tokens(one).sum() / record.latency_us * 1e6)
        assert record.latency_us < records["even"].latency_us
        assert record.logical_bytes == pytest.approx(
            records["even"].logical_bytes * source_tokens(one).mean() / 4096, rel=0.01
        )
