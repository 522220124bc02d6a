"""Training steps on real ranks: gradients are those of autograd in one process, and a wrong one fails the cell."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from tests.run.rank_gang import cell, model, run_gang
from workbench.balance.placement import expert_map_of
from workbench.comm.gradients import by_choice, pair_choices
from workbench.comm.oracle import origins
from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes, payload_bytes
from workbench.comm.rank_plan import arrival_table
from workbench.comm.strategies import STRATEGIES, make_plan
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.run.prepare import prepare_layer
from workbench.run.train_prepare import require_trainable, slots_dealt, train_recipe_of
from workbench.spec.dispatch import Dispatch
from workbench.spec.errors import Unsupported
from workbench.spec.precision import PRECISIONS, NumberFormat
from workbench.spec.router import Router
from workbench.spec.scenario import LayerScope
from workbench.workload.traffic import route_all

TRAIN = LayerScope(kind="train_step")


def step(precision="bf16", *, combine="bf16", **options):
    """A cell of one training step; ``precision`` may be a name or a recipe, ``combine`` is the format of that leg."""
    named = {"precision": precision} if isinstance(precision, str) else {}
    one = cell(scope=TRAIN, **named, **options)
    changed = {"dispatch": one.dispatch.model_copy(update={"combine_dtype": combine})}
    return one.model_copy(update=changed if named else changed | {"precision": precision})


DELAYED = PRECISIONS["fp8_tensor"].model_copy(update={"scaling": "delayed", "amax_history": 4})
NARROW = PRECISIONS["fp8_block"].model_copy(update={"gradients": NumberFormat(format="e4m3", granularity="block")})
LEGS = ("fp8_block", "nvfp4", "bf16")
OVERLAPS = ("none", {"kind": "chunk", "degree": 3})
STEPS = [
    step(strategy="flat"),
    step(strategy="node_dedup", skew={"kind": "zipf", "alpha": 1.5}),
    step(precision="fp8_block", strategy="node_dedup", dtype="fp8_block"),
    step(precision=DELAYED, strategy="flat", tokens=16),
    step(strategy="node_dedup", moe=model(weight_on="input")),
    step(strategy="flat", moe=model(bias=True, shared=False)),
    step(strategy="flat", tokens=0),
    step(strategy="none"),
    step(strategy="flat", overlap={"kind": "chunk", "degree": 2}, moe=model(bias=True, shared=False)),
    step(
        precision="fp8_block", strategy="node_dedup", dtype="fp8_block", overlap={"kind": "chunk", "degree": 3},
        skew={"kind": "zipf", "alpha": 1.5}, moe=model(weight_on="input"),
    ),
    step(strategy="node_dedup", shared_overlap=True),
    step(strategy="flat", overlap="two_batch", precision="fp8_block"),
    step(strategy="flat", overlap={"kind": "chunk", "degree": 3}, redundant=4, tokens=40),
    step(strategy="node_dedup", overlap="two_batch", shared_overlap=True, tokens=15),
    step(strategy="flat", tokens=2, overlap={"kind": "chunk", "degree": 8}, shared_overlap=True),
    *(
        step(strategy=name, sources={"kind": "ragged", "cv": 0.5}, tokens=12, overlap=OVERLAPS[number % 2],
             dtype=LEGS[number % 3], combine=LEGS[number % 3])
        for number, name in enumerate(STRATEGIES) if name not in ("none", "flat", "node_dedup")
    ),
    step(strategy="allgather_reduce_scatter", sources={"kind": "empty_rank", "rank": 2}),
]  # fmt: skip
FAULTS = {
    "combine.backward": "rank 1: gradient of",
    "dispatch.backward": "rank 2: gradient of the tokens",
    "choices": "gradient of the gate",
    "wgrad": "gradient of the experts' w13",
}


@pytest.fixture(scope="module")
def gang():
    """All cells in one gang: it must outlive its faulty ones."""
    cells = [*((step(strategy="node_dedup"), fault) for fault in FAULTS), *((one, None) for one in STEPS)]
    return [(one, reports) for (one, _), reports in zip(cells, run_gang(cells), strict=True)]


@pytest.fixture(scope="module")
def outcomes(gang):
    return [(one, merge_reports(one, reports)) for one, reports in gang[len(FAULTS) :]]


def test_steps_run_and_their_gradients_are_right(outcomes):
    for one, outcome in outcomes:
        record = outcome.record
        assert record.status == "ok", (one.dispatch.strategy, one.precision.name, record.reason)
        assert record.scope == "train_step"
        assert record.latency_ci_low_us <= record.latency_us
        if not one.workload.tokens_per_rank:
            assert record.grad_rel_error == 0
        elif one.precision.name == one.dispatch.combine_dtype == one.dispatch.dispatch_dtype == "bf16":
            assert 0 < record.grad_rel_error < 0.02, one.dispatch
        else:
            assert 0.02 < record.grad_rel_error < (0.3 if one.dispatch.dispatch_dtype == "nvfp4" else 0.2), one.dispatch


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_corrupted_gradient_fails_the_cell(gang, number):
    one, reports = gang[number]
    outcome = merge_reports(one, reports)
    assert outcome.record.status == "error"
    assert list(FAULTS.values())[number] in outcome.record.reason
    assert "float32 autograd" in outcome.record.reason
    assert outcome.record.grad_rel_error is None


def test_stages_name_forward_and_backward_apart(outcomes):
    _, outcome = outcomes[2]
    names = [row["stage"] for row in outcome.tables["stages"] if row["rank"] == 0]
    assert names == [
        "quantise", "gate", "quantise", "dispatch", "quantise", "permute", "quantise", "gemm1", "activation",
        "quantise", "gemm2", "unpermute", "combine", "shared_expert", "finish",
        "combine.backward", "unpermute.backward", "quantise.backward", "gemm2.dgrad", "gemm2.wgrad",
        "activation.backward", "quantise.backward", "gemm1.dgrad", "gemm1.wgrad", "permute.backward",
        "dispatch.backward", "shared_expert.backward", "gate.backward", "finish.backward",
    ]  # fmt: skip
    record = outcome.record
    assert 0 < record.comm_fraction < 1
    by_rank = {rank: Counter() for rank in range(4)}
    for row in outcome.tables["stages"]:
        by_rank[row["rank"]][row["stage"]] += row["duration_us"]
    slowest = max(by_rank.values(), key=lambda stages: sum(stages.values()))
    assert record.combine_us == pytest.approx(slowest["combine"] + slowest["combine.backward"])
    assert record.quantise_us == pytest.approx(slowest["quantise"] + slowest["quantise.backward"])


def test_bf16_encodes_nothing(outcomes):
    _, outcome = outcomes[0]
    names = [row["stage"] for row in outcome.tables["stages"]]
    assert "quantise.backward" not in names
    assert names.count("quantise") == 2 * 4


def test_wire_bytes_of_both_passes_are_those_of_the_plan(outcomes):
    """Backward: gradients of the output one way in bf16, of the tokens and of K weights a row the other way."""
    for one, outcome in outcomes[:3]:
        traffic = route_all(one)
        plan = make_plan(one, traffic, expert_map_of(one, traffic))
        hidden, top_k = one.model.hidden, one.model.top_k
        masks, wire = plan.topology.link_masks(), 0
        for hop in plan.hops:
            for link in ("scale_up", "scale_out"):
                sent, back = int(hop.send_counts[masks[link]].sum()), int(hop.send_counts.T[masks[link]].sum())
                wire += sent * (dispatch_row_bytes(one) + 2 * hidden)
                wire += back * (combine_row_bytes(one) + 2 * (hidden + top_k))
        assert outcome.record.wire_bytes == wire
        each = payload_bytes(hidden, one.dispatch.dispatch_dtype) + 3 * payload_bytes(hidden, "bf16")
        assert outcome.record.logical_bytes == traffic.ids.size * each


def test_flops_are_three_times_the_forward_ones(gang):
    one, reports = gang[len(FAULTS)]
    pairs = one.workload.tokens_per_rank * one.model.top_k * one.ep
    shared = one.workload.tokens_per_rank * one.model.shared_intermediate * one.ep
    forward = 6 * one.model.hidden * (pairs * one.model.moe_intermediate + shared)
    assert sum(report.flops for report in reports) == 3 * forward


def test_one_rank_by_itself_and_e4m3_gradients():
    context = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    for precision in ("bf16", NARROW, "mxfp8"):
        one = step(precision=precision, ranks=1)
        record = merge_reports(one, [run_rank(one, context)]).record
        assert record.status == "ok", record.reason
        assert record.wire_bytes == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dispatch": Dispatch(overlap="two_batch")}, "parallel.ep is 1"),
        ({"precision": PRECISIONS["mxfp4_w4a16"]}, "too narrow to train"),
        ({"precision": PRECISIONS["fp8_block"].model_copy(update={"scaling": "delayed"})}, "tensor-wide scales"),
        ({"kernel": "vllm"}, "kernel: vllm has no backward"),
    ],
)
def test_what_cannot_be_trained_says_why(change, reason):
    context = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    report = run_rank(step(ranks=1).model_copy(update=change), context)
    assert report.status == "unsupported"
    assert reason in report.reason


@pytest.mark.parametrize("router", ["expert_choice", "batch_prioritized", "switch", "hash"])
def test_routers_that_drop_or_have_no_gate(router):
    """Tokens with fewer experts than columns, or with none, and weights that do not depend on a gate."""
    context = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    one = step(ranks=1, tokens=16).model_copy(update={"router": TypeAdapter(Router).validate_python(router)})
    record = merge_reports(one, [run_rank(one, context)]).record
    assert record.status == "ok", record.reason
    assert 0 < record.grad_rel_error < 0.02


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (step(precision=DELAYED, overlap="two_batch"), "precision.scaling: delayed keeps one amax"),
        (step(precision=DELAYED, overlap={"kind": "chunk", "degree": 2}), "precision.scaling: delayed keeps one amax"),
        (step(measured=(0,)), "parallel.ranks"),
    ],
)
def test_steps_that_no_rank_can_take_say_why(one, reason):
    with pytest.raises(Unsupported, match=reason):
        require_trainable(one)


def test_a_router_without_a_gradient_says_so():
    context = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    one = step(ranks=1).model_copy(update={"router": TypeAdapter(Router).validate_python("cosine")})
    report = run_rank(one, context)
    assert report.status == "unsupported"
    assert "cosine has no gradient in scope train_step" in report.reason


def test_gradients_left_out_are_e5m2_beside_e4m3():
    names = {name: train_recipe_of(PRECISIONS[name]).gradients for name in ("bf16", "fp8_tensor", "fp8_block", "mxfp8")}
    assert names == {"bf16": "bf16", "fp8_tensor": "e5m2_tensor", "fp8_block": "e5m2_block", "mxfp8": "mxfp8"}
    impossible = PRECISIONS["mxfp8"].model_copy(update={"gradients": NumberFormat(format="e5m2", granularity="mx")})
    with pytest.raises(Unsupported, match="no number format for element 'e5m2'"):
        train_recipe_of(impossible)


@pytest.mark.parametrize("strategy", ["flat", "node_dedup", "none"])
def test_every_pair_finds_its_choice(strategy):
    """Each choice of each token is found exactly once; its weight tells which it is."""
    context = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    one = step(strategy=strategy, tokens=9)
    traffic = route_all(one)
    expert_map = expert_map_of(one, traffic)
    plan = make_plan(one, traffic, expert_map)
    single = prepare_layer(step(ranks=1), context)
    slots = slots_dealt(replace(single, traffic=traffic, expert_map=expert_map, plan=plan))
    found = 0
    for rank in range(one.ep):
        ids, weights = arrival_table(plan.arrivals[rank], plan.num_rows(rank))
        choices, (source, token, _) = pair_choices(plan, rank, slots, ids), origins(plan, rank)
        row, column = np.nonzero(ids >= 0)
        assert ((choices >= 0) == (ids >= 0)).all()
        found += row.size
        assert (traffic.weights[source[row], token[row], choices[row, column]] == weights[row, column]).all()
    assert found == slots.size


def test_by_choice_worked_example():
    got = by_choice(torch.tensor([[5.0, 7.0]]), torch.tensor([[2, -1]]), top_k=3)
    assert got.tolist() == [[0.0, 0.0, 5.0]]
