"""Whole simulated cells: physical bounds, what skew and strategies do, and how cells that cannot be priced end."""

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulate.cells import H200, cluster_of, make_cell
from workbench.run.simulated import run_simulated
from workbench.simulate import traffic
from workbench.simulate.compute import rates_of
from workbench.simulate.layer import price_layer
from workbench.simulate.traffic import group_traffic
from workbench.simulate.weights import expert_bytes
from workbench.spec.precision import PRECISIONS
from workbench.spec.record import TABLE_COLUMNS

FP8 = {"dispatch_dtype": "fp8_block"}


def ok(**arguments):
    record = run_simulated(make_cell(**arguments)).record
    assert record.status == "ok", record.reason
    return record


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.sampled_from([1, 7, 64, 700, 4096]),
    ep=st.sampled_from([1, 4, 16, 64]),
    precision=st.sampled_from(sorted(PRECISIONS)),
    strategy=st.sampled_from(["flat", "node_dedup"]),
    alpha=st.sampled_from([0.0, 0.8]),
    overlap=st.booleans(),
)
def test_never_faster_than_physics(tokens, ep, precision, strategy, alpha, overlap):
    cell = make_cell(
        "deepseek-v3", ep=ep, tokens=tokens, precision=precision, skew={"kind": "zipf", "alpha": alpha},
        dispatch=FP8 | {"strategy": strategy, "shared_expert_overlap": overlap},
        cluster=cluster_of("b200-sxm", gpus=ep),
    )  # fmt: skip
    record, counted = run_simulated(cell).record, group_traffic(cell)
    assert record.status == "ok"
    rates, model = rates_of(cell.cluster.hardware, cell.precision), cell.model
    weights_us = (counted.touched_R * expert_bytes(model, cell.precision)).max() / rates.bytes_per_us
    math_us = 6 * counted.pairs_R.max() * model.hidden * model.moe_intermediate / rates.expert_flops_per_us
    nic_us = max((hop.out_sent_R.max() for hop in counted.hops), default=0) * (7392 + 14336) / 50e3
    assert record.latency_us >= max(weights_us, math_us) + nic_us
    assert record.hbm_gb_per_s <= cell.cluster.hardware.memory_tb_per_s * 1e3
    assert 0 < record.roofline_fraction <= 1
    assert "above_peak" not in (record.flags or "")
    assert record.rank_min_us <= record.rank_max_us <= record.latency_us * (1 + 1e-9)


def test_parts_add_up_to_the_latency():
    record = ok(ep=16, precision="fp8_block", dispatch=FP8, skew="balanced")
    parts = ("compute", "quantise", "count_exchange", "dispatch", "combine")
    assert sum(getattr(record, f"{part}_us") for part in parts) == pytest.approx(record.latency_us, rel=1e-2)


def test_one_copy_a_node_moves_fewer_bytes_between_nodes():
    flat, dedup = (ok(ep=32, dispatch=FP8 | {"strategy": name}) for name in ("flat", "node_dedup"))
    assert flat.logical_bytes == dedup.logical_bytes
    # 8 pairs a token, 3/4 of them off the node; DeepSeek's groups keep a token on at most 4 nodes of experts
    assert dedup.scale_out_bytes < 0.55 * flat.scale_out_bytes
    assert dedup.dispatch_us < flat.dispatch_us


def test_more_skew_makes_a_slower_rank():
    times, loads = [], []
    for factor in (1.0, 2.0, 4.0):
        record = ok(tokens=4096, skew={"kind": "hot_rank", "factor": factor})
        times.append(record.latency_us)
        loads.append(record.load_max_over_mean)
    assert times == sorted(times)
    assert loads == sorted(loads)
    assert times[2] > 1.5 * times[0]


def test_shared_expert_hides_behind_the_exchange():
    serial, hidden = (ok(ep=32, dispatch=FP8 | {"shared_expert_overlap": flag}) for flag in (False, True))
    stages = price_layer(make_cell(ep=32, dispatch=FP8), group_traffic(make_cell(ep=32, dispatch=FP8))).spans
    shared_us = sum(span.duration_us_R[0] for span in stages if span.stage == "shared_expert")
    assert hidden.latency_us == pytest.approx(serial.latency_us - shared_us)


def test_exchanges_wait_for_the_slowest_rank():
    cell = make_cell(ep=16, tokens=1024, skew={"kind": "hot_rank", "factor": 4.0, "rank": 3})
    cost = price_layer(cell, group_traffic(cell))
    assert cost.slowest == 3
    ends = {span.stage: span.start_us_R + span.duration_us_R for span in cost.spans}
    (combine,) = [span for span in cost.spans if span.stage == "combine" and span.stream == "network"]
    assert ends["unpermute"].argmax() == 3
    assert (combine.start_us_R == ends["unpermute"][3]).all()
    assert ends["unpermute"][0] < combine.start_us_R[0], "rank 0 waits"
    assert cost.busy_us_R[0] < cost.latency_us


def test_the_shared_expert_is_computed_while_the_first_messages_travel():
    cell = make_cell(ep=32, dispatch=FP8 | {"strategy": "node_dedup", "shared_expert_overlap": True}, tokens=512)
    spans = price_layer(cell, group_traffic(cell)).spans
    lane = [s for s in spans if s.stream == "network"]
    shared = [s for s in spans if s.stage == "shared_expert"]
    experts = next(s for s in spans if s.stage == "permute")
    assert {s.stream for s in shared} == {"main"}
    assert (shared[0].start_us_R == lane[0].start_us_R).all()
    assert (shared[-1].start_us_R + shared[-1].duration_us_R <= experts.start_us_R + 1e-9).all()


def test_a_shared_expert_that_does_not_fit_behind_the_first_messages_stays_exposed():
    alone = {"ep": 8, "tokens": 8192, "cluster": cluster_of("gb200-nvl72", gpus=8, gpus_per_node=8)}
    model = {"base": "deepseek-v3", "shared_intermediate": 65536}
    serial, hidden = (ok(model=model, dispatch={"shared_expert_overlap": flag}, **alone) for flag in (False, True))
    window_us = serial.dispatch_us + serial.count_exchange_us
    assert hidden.latency_us == pytest.approx(serial.latency_us - window_us, rel=1e-3)
    assert hidden.comm_fraction == pytest.approx(serial.combine_us / hidden.latency_us, rel=1e-2)


def test_without_router_only_the_gate_is_gone():
    with_gate, without = run_simulated(make_cell()), run_simulated(make_cell(scope="layer_no_router"))
    names = [{row["stage"] for row in outcome.tables["stages"]} for outcome in (with_gate, without)]
    assert names[0] - names[1] == {"gate"}
    gate_us = next(row["duration_us"] for row in with_gate.tables["stages"] if row["stage"] == "gate")
    assert with_gate.record.latency_us - without.record.latency_us == pytest.approx(gate_us)


def test_no_dispatch_without_hops():
    record = ok(dispatch=FP8 | {"strategy": "none"})
    assert record.dispatch_us == record.combine_us == record.count_exchange_us == record.wire_bytes == 0
    assert record.logical_bytes == 0


def test_tensor_parallel_experts_are_half_and_reduced():
    whole, half = ok(ep=4, tokens=32, cluster=cluster_of(gpus=8)), ok(ep=4, tp=2, tokens=32)
    assert half.compute_us < whole.compute_us
    assert half.combine_us > whole.combine_us
    assert half.tokens_per_s_per_gpu < 2 * whole.tokens_per_s_per_gpu


def test_layers_and_steps():
    one = ok(tokens=64)
    three = ok(tokens=64, workload={"layers": 3})
    assert three.latency_us == pytest.approx(3 * one.latency_us, rel=0.1)
    assert three.weight_bytes == 3 * one.weight_bytes
    assert three.wire_bytes == pytest.approx(3 * one.wire_bytes, rel=0.1)
    assert three.tokens_per_s == pytest.approx(one.tokens_per_s / 3, rel=0.1)
    many = ok(tokens=64, workload={"layers": 20, "steps": 5})
    assert many.latency_us == pytest.approx(20 * one.latency_us, rel=0.1)
    assert "sampled_layers=8" in many.flags
    assert "sampled_steps=1" in many.flags


def test_price_per_million_tokens():
    cluster = cluster_of().model_copy(update={"usd_per_gpu_hour": 3.6})
    record = ok(cluster=cluster)
    assert record.usd_per_million_tokens == pytest.approx(3.6 / 3600 / record.tokens_per_s_per_gpu * 1e6)
    assert ok().usd_per_million_tokens is None


def test_zero_tokens_give_a_row_without_throughput():
    record = ok(tokens=0)
    assert record.tokens_per_s is None
    assert record.tflops is None
    assert record.touched_experts == 0


def test_sampling_is_flagged_and_close_to_the_whole():
    whole, sampled = ok(ep=4, tokens=1024), ok(ep=4, tokens=1_048_576 // 1024 * 64)
    assert whole.flags is None or "sampled" not in whole.flags
    assert "sampled_tokens=1024" in sampled.flags
    assert sampled.logical_bytes == 64 * whole.logical_bytes


def test_every_outcome_has_bounded_tables_with_their_columns():
    outcome = run_simulated(make_cell(ep=256, tokens=64, dispatch=FP8 | {"strategy": "node_dedup"}))
    assert set(outcome.tables) == set(TABLE_COLUMNS)
    for name, rows in outcome.tables.items():
        for row in rows:
            assert set(row) == set(TABLE_COLUMNS[name])
            assert all(type(row[column]) is kind for column, kind in TABLE_COLUMNS[name].items())
    assert len({row["rank"] for row in outcome.tables["stages"]}) <= 2
    assert sum(map(len, outcome.tables.values())) < 700
    by_rank = sum(row["tokens"] for row in outcome.tables["loads"] if row["kind"] == "rank")
    assert by_rank == pytest.approx(256 * 64 * 8, abs=128), "whole tokens of scaled counts"


def test_records_repeat_exactly():
    cell = make_cell(ep=16, skew="power_law")
    first = run_simulated(cell).record
    traffic._cached.cache_clear()
    assert asdict(run_simulated(cell).record) == asdict(first)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"method": "measured", "precision": "mxfp4"}, "method measured"),
        ({"method": "published"}, "method published"),
        ({"method": "calibrated", "precision": "nvfp4"}, "method calibrated"),
        ({"optimizer": "sgd"}, "optimizer sgd"),
        ({"scope": "train_step", "precision": "mxfp4_w4a16"}, "precision.weights e2m1 is too narrow"),
        ({"kernel": "marlin"}, "kernel marlin has no rows to be priced from"),
        ({"kernel": "vllm", "precision": "mxfp8"}, "kernel vllm has no rows in mxfp8"),
        ({"kernel": "vllm", "precision": "fp8_block", "method": "measured"}, "method measured: no record"),
        ({"scope": "train_step", "method": "calibrated"}, "method calibrated prices the experts"),
        ({"offload": {"tier": "nvme"}}, "offload.tier nvme"),
        ({"optimizer": "adamw_fp32"}, "optimizer"),
        ({"goal": {}}, "goal"),
        ({"dispatch": {"overlap": {"kind": "chunk", "degree": 2}}, "ep": 1}, "parallel.ep is 1"),
        ({"dispatch": {"overlap": "two_batch"}, "router": "expert_choice"}, "router expert_choice does not"),
        ({"dispatch": {"strategy": "low_latency"}, "tokens": 4096}, "511 tokens a rank"),
        ({"skew": {"kind": "hot_rank", "rank": 99}}, "workload.skew.rank: 99"),
        ({"router": {"kind": "recorded"}}, "recorded"),
        (
            {"router": "switch", "balance": {"training": "bias", "placement": {"redundant_experts": 0}}},
            "balance.training: router switch",
        ),
        (
            {"ep": 1024, "redundant": 768, "cluster": cluster_of(H200, gpus=1024), "dispatch": {"strategy": "bruck"}},
            "512",
        ),
    ],
)
def test_what_cannot_be_priced_ends_unsupported_with_the_reason(arguments, named):
    rest = dict(arguments)
    balance = rest.pop("balance", None)
    cell = make_cell(**rest)
    if balance:
        cell = make_cell(**rest).model_copy(update={"balance": type(cell.balance).model_validate(balance)})
    outcome = run_simulated(cell)
    assert outcome.record.status == "unsupported"
    assert named in outcome.record.reason
    assert outcome.record.latency_us is None
    assert outcome.record.engine == "simulate"


def test_a_fault_inside_becomes_an_error_row(monkeypatch):
    def broken(cell, **_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("workbench.run.simulated.group_traffic", broken)
    record = run_simulated(make_cell()).record
    assert record.status == "error"
    assert "RuntimeError: no such thing" in record.reason


def test_the_roofline_is_named_and_has_no_band():
    record = ok(method="roofline")
    assert (record.engine, record.method) == ("simulate", "roofline")
    assert record.error_band_pct is record.band_low_us is record.band_high_us is None
    assert record.num_samples is None


def test_steps_of_training_make_the_last_step_faster_and_are_told():
    def trained(steps, training):
        cell = make_cell(ep=8, tokens=64, skew={"kind": "zipf", "alpha": 0.7}, workload={"steps": steps})
        return ok_of(cell.model_copy(update={"balance": cell.balance.model_copy(update={"training": training})}))

    def ok_of(cell):
        record = run_simulated(cell).record
        assert record.status == "ok", record.reason
        return record

    before, after, loss = trained(1, "bias"), trained(200, "bias"), trained(30, "aux_loss")
    excess = [record.load_max_over_mean - 1 for record in (before, after, loss)]
    assert excess[1] < 0.6 * excess[0]
    assert excess[2] < 0.6 * excess[0]
    assert after.latency_us < before.latency_us
    assert "trained_steps=199" in after.flags
    assert trained(1, "none").load_max_over_mean == before.load_max_over_mean
