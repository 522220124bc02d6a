"""Measured compute with priced exchanges."""

from dataclasses import replace

import pytest

from tests.simulate.cells import make_cell
from workbench.comm.strategies import STRATEGIES
from workbench.run.describe import base_record_fields, failed
from workbench.run.hybrid import EXCHANGES, MEASURED_ALONE, merge_hybrid
from workbench.run.simulated import run_simulated
from workbench.spec.record import Outcome, Record

CELL = make_cell(ep=16, engine="hybrid", parallel={"ep": 16, "ranks": [0]})


def stage(name, start, duration):
    return {
        "cell_id": "cell", "rank": 0, "stream": "main", "stage": name, "start_us": start, "duration_us": duration,
        "bytes": 1, "flops": 1,
    }  # fmt: skip


def measured(latency_us=900.0, **fields):
    rows = [stage("gate", 0.0, 10.0), stage("dispatch", 10.0, 40.0), stage("permute", 50.0, 20.0)]
    rows += [stage("gemm1", 70.0, 700.0), stage("unpermute", 770.0, 30.0), stage("combine", 800.0, 60.0)]
    sample = {"cell_id": "cell", "rank": 0, "iteration": 0, "repeat": 0, "us": latency_us}
    base = base_record_fields(CELL) | {
        "status": "ok", "engine": "measure", "latency_us": latency_us, "latency_p95_us": latency_us + 50,
        "dispatch_us": 40.0, "combine_us": 60.0, "compute_us": 760.0, "tflops": 100.0, "rel_error": 0.003,
        "num_samples": 30, "flags": "few_samples,ranks=0", "staging_us": 5.0,
    }  # fmt: skip
    tables = {"stages": rows, "samples": [sample], "links": [], "loads": [], "memory": []}
    return Outcome(record=Record(**(base | fields)), tables=tables)


def test_exchanges_are_priced_and_the_rest_is_measured():
    record, priced = merge_hybrid(CELL, measured()).record, run_simulated(CELL).record
    network_us = priced.dispatch_us + priced.combine_us + priced.count_exchange_us
    assert (record.engine, record.method, record.status) == ("hybrid", "measured+calibrated", "ok")
    assert record.latency_us == pytest.approx(900 - 100 + network_us)
    assert record.latency_p95_us == pytest.approx(record.latency_us + 50)
    assert record.dispatch_us == priced.dispatch_us
    assert record.compute_us == 760.0
    assert record.rel_error == 0.003
    assert record.wire_bytes == priced.wire_bytes
    assert record.tflops == pytest.approx(100.0 * 900 / record.latency_us)
    assert record.comm_fraction == pytest.approx(network_us / record.latency_us)
    assert record.tokens_per_s == pytest.approx(16 * 128 / record.latency_us * 1e6)
    assert record.band_low_us < record.latency_us < record.band_high_us
    assert record.latency_us - record.band_low_us < 0.5 * network_us, "of the messages alone"
    sheet = merge_hybrid(CELL.model_copy(update={"method": "roofline"}), measured()).record
    assert (sheet.method, sheet.error_band_pct) == ("measured+roofline", None)


def test_a_rank_measured_alone_pays_for_the_wire_too():
    cell = make_cell(
        ep=16, engine="hybrid", parallel={"ep": 16, "ranks": [0]}, dispatch={"dispatch_dtype": "fp8_block"}
    )
    alone = merge_hybrid(cell, measured(dispatch_us=0.0, combine_us=0.0, quantise_us=8.0)).record
    both = merge_hybrid(cell, measured(quantise_us=8.0)).record
    wire_us = alone.latency_us - 100 - both.latency_us
    assert alone.quantise_us == pytest.approx(8 + wire_us)
    assert wire_us > 3, "one kernel at least"
    assert both.quantise_us == 8


def test_flags_name_the_ranks_and_an_unmeasured_straggler():
    flags = merge_hybrid(CELL, measured()).record.flags.split(",")
    assert flags[:3] == ["few_samples", "ranks=0", "network_priced"]
    hot = make_cell(
        ep=16, engine="hybrid", parallel={"ep": 16, "ranks": [0]}, skew={"kind": "hot_rank", "factor": 4, "rank": 5}
    )
    assert "slowest_rank_not_measured" in merge_hybrid(hot, measured()).record.flags
    own = make_cell(
        ep=16, engine="hybrid", parallel={"ep": 16, "ranks": [0]}, skew={"kind": "hot_rank", "factor": 4, "rank": 0}
    )
    assert "slowest_rank_not_measured" not in merge_hybrid(own, measured()).record.flags


def test_stages_are_laid_out_again():
    outcome = merge_hybrid(CELL, measured())
    rows = outcome.tables["stages"]
    names = [row["stage"] for row in rows]
    assert names == ["gate", "count_exchange", "dispatch", "permute", "gemm1", "unpermute", "combine"]
    ends = [row["start_us"] + row["duration_us"] for row in rows]
    assert [row["start_us"] for row in rows[1:]] == pytest.approx(ends[:-1])
    local = sum(row["duration_us"] for row in rows if row["stage"] not in EXCHANGES)
    assert local == 760.0
    assert outcome.tables["links"]
    assert outcome.tables["samples"][0]["us"] == pytest.approx(outcome.record.latency_us)


def test_what_was_not_measured_keeps_its_status():
    broken = merge_hybrid(CELL, failed(CELL, "rank 0 died", engine="measure")).record
    assert (broken.status, broken.reason, broken.engine) == ("error", "rank 0 died", "hybrid")
    nothing = merge_hybrid(CELL, Outcome(record=replace(measured().record, latency_us=None))).record
    assert nothing.status == "error"
    far = make_cell(ep=16, engine="hybrid", method="published")
    assert merge_hybrid(far, measured()).record.status == "unsupported"
    foreign = make_cell(ep=16, engine="hybrid", kernel="vllm")
    assert merge_hybrid(foreign, measured()).record.status == "ok", "a peer's kernels may be measured"


def test_clocks_and_legs_of_the_measured_step_do_not_stand_beside_priced_exchanges():
    figures = dict.fromkeys(MEASURED_ALONE, 7.0)
    record = merge_hybrid(CELL, measured(**figures)).record
    assert [getattr(record, name) for name in figures] == [None] * len(figures)


def overlapping(**dispatch):
    shared = {"base": "deepseek-v3", "shared_intermediate": 0}
    return make_cell(shared, ep=16, tokens=500, engine="hybrid", parallel={"ep": 16, "ranks": [0]}, dispatch=dispatch)


def alone(**fields):
    outcome = measured(dispatch_us=0.0, combine_us=0.0, latency_us=760.0, **fields)
    rows, start = [], 0.0
    for row in outcome.tables["stages"]:
        if row["stage"] not in EXCHANGES:
            rows.append(row | {"start_us": start})
            start += row["duration_us"]
    return Outcome(record=outcome.record, tables=outcome.tables | {"stages": rows})


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "none"])
def test_overlap_puts_measured_compute_beside_priced_messages(strategy):
    serial = merge_hybrid(overlapping(strategy=strategy), alone()).record
    one, two = (
        merge_hybrid(overlapping(strategy=strategy, overlap={"kind": "chunk", "degree": degree}), alone()).record
        for degree in (1, 2)
    )
    assert one.status == two.status == "ok", two.reason
    assert one.latency_us == pytest.approx(serial.latency_us, rel=0.02)
    assert one.compute_us == pytest.approx(serial.compute_us)
    assert two.compute_us > one.compute_us, "a chunk reads the weights again"
    hidden = next(float(flag.split("=")[1]) for flag in two.flags.split(",") if flag.startswith("overlap_hidden_us="))
    exchange_us = two.dispatch_us + two.combine_us + two.count_exchange_us
    assert two.latency_us == pytest.approx(two.compute_us + two.quantise_us + exchange_us - hidden, rel=5e-3)
    assert two.comm_fraction == pytest.approx((exchange_us - hidden) / two.latency_us, rel=1e-3)


def test_stages_of_an_overlapped_hybrid_stand_on_their_streams():
    cell = overlapping(overlap={"kind": "chunk", "degree": 2})
    outcome = merge_hybrid(cell, alone())
    rows = outcome.tables["stages"]
    assert {row["stream"] for row in rows} == {"main", "network"}
    experts = sum(row["duration_us"] for row in rows if row["stream"] == "main" and row["stage"] != "gate")
    assert experts > 750, "what was measured, and the weights read twice"
    gate = [row["duration_us"] for row in rows if row["stage"] == "gate"]
    assert sum(gate) == pytest.approx(10.0)
    end = max(row["start_us"] + row["duration_us"] for row in rows)
    assert end == pytest.approx(outcome.record.latency_us)


def test_two_batch_and_a_shared_expert_beside_are_hybrid_too():
    shared = [stage("shared_expert", 760.0, 100.0)]
    base = alone()
    measured_shared = Outcome(
        record=replace(base.record, latency_us=860.0, compute_us=860.0),
        tables=base.tables | {"stages": base.tables["stages"] + shared},
    )
    cells = [
        make_cell(ep=16, tokens=512, engine="hybrid", parallel={"ep": 16, "ranks": [0]}, dispatch=dispatch)
        for dispatch in ({}, {"shared_expert_overlap": True}, {"overlap": "two_batch"})
    ]
    serial, beside, two = (merge_hybrid(cell, measured_shared).record for cell in cells)
    assert beside.latency_us == pytest.approx(serial.latency_us - 100.0, rel=0.01)
    assert two.status == "ok"
    assert "overlap_hidden_us" in two.flags
