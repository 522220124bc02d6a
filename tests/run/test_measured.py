"""Measured cells on real ranks: figures are there, and every gate bites."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.formats import FORMATS
from kernels.moe import expert_mlp
from tests.run.rank_gang import cell, model, run_gang
from workbench.balance.placement import expert_map_of
from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.comm.strategies import make_plan
from workbench.run.context import open_context
from workbench.run.describe import base_record_fields
from workbench.run.encoded import recipe_of
from workbench.run.inputs import expert_weights, reference_weights
from workbench.run.measured import merge_reports, run_rank
from workbench.run.prepare import prepare_layer
from workbench.spec.precision import PRECISIONS
from workbench.spec.scenario import AllToAllScope, GroupedGemmScope, LayerScope, QuantizeScope
from workbench.workload.traffic import route_all

LAYERS = [
    cell(strategy="flat"),
    cell(strategy="node_dedup", skew={"kind": "zipf", "alpha": 1.5}),
    cell(strategy="flat", dtype="fp8_block", precision="fp8_block"),
    cell(strategy="node_dedup", dtype="nvfp4", precision="nvfp4_w4a16"),
    cell(strategy="node_dedup", moe=model(weight_on="input")),
    cell(strategy="flat", moe=model(bias=True, shared=False), precision="mxfp4_w4a16"),
    cell(strategy="flat", tokens=0),
    cell(strategy="none"),
    cell(strategy="flat", scope=LayerScope(kind="layer_no_router")),
    cell(strategy="node_dedup", dtype="fp8_block", overlap={"kind": "chunk", "degree": 3}),
    cell(strategy="flat", overlap="two_batch", shared_overlap=True),
]


NARROW, CHUNKED = cell(precision="mxfp4_w4a16"), cell(overlap={"kind": "chunk", "degree": 2})
FAULTS = [
    (NARROW, "combine", "rank 1: combine: with experts"),
    (NARROW, "dispatch", "rank 2: dispatch delivered 1"),
    (NARROW, "prepare", "rank 3: ValueError"),
    (CHUNKED, "combine", "rank 1: combine: with experts"),
    (CHUNKED, "dispatch", "rank 2: dispatch delivered 1"),
]


@pytest.fixture(scope="module")
def gang():
    """All cells that need four ranks, in one gang: it must outlive its faulty cells."""
    bandwidth = cell(scope=AllToAllScope(kind="all_to_all", bytes_per_rank=65536))
    faulty = [(one, fault) for one, fault, _ in FAULTS]
    cells = [*faulty, *((one, None) for one in [*LAYERS, bandwidth]), (cell(), "slow")]
    return [(one, reports) for (one, _), reports in zip(cells, run_gang(cells), strict=True)]


@pytest.fixture(scope="module")
def outcomes(gang):
    return [(one, merge_reports(one, reports)) for one, reports in gang[len(FAULTS) :]]


def test_layers_run_and_pass_the_gate(outcomes):
    for one, outcome in outcomes[: len(LAYERS)]:
        record = outcome.record
        assert record.status == "ok", record.reason
        assert record.latency_ci_low_us <= record.latency_us <= record.latency_ci_high_us
        assert record.latency_us <= record.latency_p95_us <= record.latency_p99_us
        assert record.rank_min_us <= record.rank_max_us
        assert record.timer == "wall"
        assert record.first_call_us > 0
        assert (record.tokens_per_s is None) == (one.workload.tokens_per_rank == 0)


def test_errors_are_those_of_the_formats(outcomes):
    errors = {outcome.record.precision: outcome.record.rel_error for _, outcome in outcomes[:6]}
    assert errors["bf16"] < errors["fp8_block"] < errors["nvfp4_w4a16"]
    assert errors["bf16"] < 0.01


def test_wire_bytes_are_counted_from_buffers_and_equal_the_plan(outcomes):
    for one, outcome in outcomes[:4]:
        traffic = route_all(one)
        plan = make_plan(one, traffic, expert_map_of(one, traffic))
        planned = {"scale_up": 0, "scale_out": 0}
        masks = plan.topology.link_masks()
        for hop in plan.hops:
            for link in planned:
                sent, back = int(hop.send_counts[masks[link]].sum()), int(hop.send_counts.T[masks[link]].sum())
                planned[link] += sent * dispatch_row_bytes(one) + back * combine_row_bytes(one)
        assert outcome.record.scale_up_bytes == planned["scale_up"]
        assert outcome.record.scale_out_bytes == planned["scale_out"]
        assert outcome.record.wire_bytes == sum(planned.values())


def test_stage_times_name_the_work(outcomes):
    _, outcome = outcomes[2]
    names = [row["stage"] for row in outcome.tables["stages"] if row["rank"] == 0]
    assert names == ["gate", "quantise", "dispatch", "quantise", "permute", "quantise", "gemm1", "activation",
                     "quantise", "gemm2", "unpermute", "combine", "shared_expert", "finish"]  # fmt: skip
    assert outcome.record.dispatch_us > 0
    assert 0 < outcome.record.comm_fraction < 1


def test_loads_count_every_pair(outcomes):
    one, outcome = outcomes[1]
    by_expert = sum(row["tokens"] for row in outcome.tables["loads"] if row["kind"] == "expert")
    by_rank = sum(row["tokens"] for row in outcome.tables["loads"] if row["kind"] == "rank")
    assert by_expert == by_rank == one.ep * one.workload.tokens_per_rank * one.model.top_k
    assert outcome.record.load_max_over_mean > 1


def test_bandwidth_of_the_bare_exchange(outcomes):
    record = outcomes[len(LAYERS)][1].record
    assert record.status == "ok"
    assert record.wire_bytes == 4 * 65536 * 3 // 4
    assert record.busbw_gb_per_s == pytest.approx(record.algbw_gb_per_s * 3 / 4)


def test_a_slow_rank_makes_the_cell_slow_and_is_seen_in_its_stages(outcomes):
    _, outcome = outcomes[-1]
    assert outcome.record.status == "ok", outcome.record.reason
    assert outcome.record.latency_us > 20_000
    products = {row["rank"]: row["duration_us"] for row in outcome.tables["stages"] if row["stage"] == "gemm1"}
    assert products[3] > 20_000


def test_overlapped_layers_say_what_was_hidden(outcomes):
    """Stages of all chunks, their sum against the latency, and messages that are left of it."""
    for one, outcome in outcomes[len(LAYERS) - 2 : len(LAYERS)]:
        record, parts = outcome.record, 3 if one.dispatch.overlap.kind == "chunk" else 2
        names = [row["stage"] for row in outcome.tables["stages"] if row["rank"] == 0]
        assert names.count("dispatch") == names.count("combine") == names.count("gemm1") == parts
        assert names.count("gate") == (1 if parts == 3 else 2)
        assert record.overlap_degree == (3 if parts == 3 else None)
        (hidden_us,) = (float(flag.split("=")[1]) for flag in record.flags.split(",") if "overlap_hidden_us" in flag)
        by_rank = [
            sum(row["duration_us"] for row in outcome.tables["stages"] if row["rank"] == rank) for rank in range(4)
        ]
        assert 0 <= hidden_us <= max(by_rank)
        assert 0 <= record.comm_fraction < 1
    assert all("overlap_hidden" not in (outcome.record.flags or "") for _, outcome in outcomes[: len(LAYERS) - 2])


@pytest.mark.parametrize("index", range(len(FAULTS)))
def test_a_fault_of_one_rank_fails_the_cell_and_names_it(gang, index):
    record = merge_reports(*gang[index]).record
    assert record.status == "error"
    assert FAULTS[index][2] in record.reason


@pytest.fixture(scope="module")
def alone():
    return open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)


def test_one_rank_of_a_larger_group_runs_alone(alone):
    one = cell(measured=(2,), strategy="none")
    report = run_rank(one, alone)
    assert report.status == "ok", report.reason
    record = merge_reports(one, [report]).record
    assert record.flags == "ranks=2"
    assert record.tokens_per_s is None
    assert report.pairs == int((route_all(one).ids // 4 == 2).sum())


def test_what_cannot_be_measured_is_unsupported(alone):
    one = cell(ranks=1).model_copy(update={"optimizer": "adamw_fp32"})
    report = run_rank(one, alone)
    assert (report.status, report.reason) == ("unsupported", "optimizer: adamw_fp32 cannot be measured yet; none can")


def test_one_rank_alone_with_messages_is_unsupported_but_hybrid_may(alone):
    assert run_rank(cell(measured=(0,), strategy="flat"), alone).status == "unsupported"
    assert run_rank(cell(measured=(0,), strategy="flat", engine="hybrid"), alone).status == "ok"


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_every_precision_runs_on_one_rank(alone, precision):
    report = run_rank(cell(ranks=1, precision=precision, strategy="none"), alone)
    assert report.status == "ok", report.reason
    assert report.math_path == ("native" if precision == "bf16" else "upcast" if "a16" in precision else "emulated")


def test_wrong_weights_do_not_pass(alone, monkeypatch):
    one = cell(ranks=1, strategy="none")
    other = one.model_copy(update={"workload": one.workload.model_copy(update={"seed": 1})})
    monkeypatch.setattr(
        "workbench.run.check.reference_weights",
        lambda *_, device, seed: reference_weights(other.model, seed=1, device=device),
    )
    report = run_rank(one, alone)
    assert report.status == "error"
    assert "differs from the float32 reference" in report.reason


@pytest.mark.parametrize(
    "scope",
    [
        GroupedGemmScope(kind="grouped_gemm", groups=4, m=130, n=64, k=256),
        QuantizeScope(kind="quantize", rows=33, columns=160),
    ],
)
def test_microbenchmarks_check_what_they_made(alone, scope):
    report = run_rank(cell(ranks=1, precision="fp8_block", scope=scope), alone)
    assert report.status == "ok", report.reason
    assert 0.01 < report.rel_error < 0.1


def test_a_figure_never_stands_under_another_parts_name(alone):
    one = cell(ranks=1, strategy="none")
    part = one.cluster.hardware.model_copy(update={"name": "h200-sxm", "device": "cuda"})
    report = run_rank(one.model_copy(update={"cluster": one.cluster.model_copy(update={"hardware": part})}), alone)
    assert report.status == "infeasible"
    assert "h200-sxm" in report.reason


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_e13_inputs_are_not_mostly_zeros(alone, precision):
    one = cell(ranks=1, precision=precision, strategy="none")
    prepared = prepare_layer(one, alone)
    recipe = recipe_of(PRECISIONS[precision])
    weights = prepared.layer.experts.w13
    assert float((FORMATS[weights.format].decode(weights) == 0).float().mean()) < 0.15
    entry = FORMATS[recipe.activations]
    assert float((entry.decode(entry.encode(prepared.layer.x_TH)) == 0).float().mean()) < 0.15
    assert float(prepared.layer.x_TH.float().square().mean()) > 0.5
    offsets = torch.tensor([0, *[4] * len(prepared.layer.experts.w13.data)])
    rows = expert_mlp(prepared.layer.x_TH[:4], offsets, prepared.layer.experts)
    assert float(rows.float().square().mean()) > 0
    fields = base_record_fields(one)
    assert (fields["data"], fields["seed"]) == ("gaussian", one.workload.seed)


def test_any_rank_can_rebuild_any_expert():
    device, moe = torch.device("cpu"), model()
    everything = reference_weights(moe, seed=3, device=device)
    some = expert_weights(moe, (5, 2), seed=3, device=device)
    assert torch.equal(some.w13[0], everything.w13[5])
    assert torch.equal(some.w2[1], everything.w2[2])
    assert not torch.equal(some.w2[1], some.w2[0])


def test_latency_is_the_slowest_rank_of_each_iteration(gang):
    one, reports = gang[len(FAULTS)]
    outcome = merge_reports(one, reports)
    samples = np.array([report.samples_us for report in reports])
    assert outcome.record.latency_us == pytest.approx(np.median(samples.max(axis=0)))
    assert len(outcome.tables["samples"]) == samples.size


def test_stages_of_a_graph_keep_their_shares_and_fit_its_latency(alone):
    one = cell(ranks=1, strategy="none")
    report = replace(
        run_rank(one, alone), graph=True, samples_us=(10.0, 12.0, 11.0), stages=(("gate", 30.0), ("gemm1", 90.0))
    )
    outcome = merge_reports(one, [report])
    assert [row["duration_us"] for row in outcome.tables["stages"]] == pytest.approx([2.75, 8.25])
    assert outcome.record.compute_us == pytest.approx(11.0)
    assert "stages_scaled" in outcome.record.flags
    eager = merge_reports(one, [replace(report, graph=False)])
    assert eager.record.compute_us == pytest.approx(120.0)
    assert eager.record.flags is None
