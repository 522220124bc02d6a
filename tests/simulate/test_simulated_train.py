"""A priced training step: the forward as it was, twice its GEMM work, and both exchanges transposed."""

from collections import Counter

import pytest

from tests.simulate.cells import make_cell
from workbench.balance.placement import expert_map_of
from workbench.comm.payload import combine_row_bytes, dispatch_row_bytes
from workbench.comm.strategies import make_plan
from workbench.run.simulated import run_simulated
from workbench.simulate.layer import price_layer
from workbench.simulate.memory import layer_fit
from workbench.simulate.support import exchange_unsupported_reason
from workbench.simulate.traffic import group_traffic
from workbench.simulate.train import gradient_format
from workbench.spec.precision import PRECISIONS, NumberFormat
from workbench.workload.traffic import route_all

NODES = {"strategy": "node_dedup", "dispatch_dtype": "fp8_block"}
BACKWARD = [
    "combine.backward", "unpermute.backward", "gemm2.dgrad", "gemm2.wgrad", "activation.backward", "gemm1.dgrad",
    "gemm1.wgrad", "permute.backward", "dispatch.backward", "shared_expert.backward", "gate.backward",
    "finish.backward",
]  # fmt: skip


def pair(**options):
    """A layer and the training step of the same cell, priced."""
    cells = [make_cell(scope=scope, **options) for scope in ("layer", "train_step")]
    return [(cell, price_layer(cell, group_traffic(cell))) for cell in cells]


def in_order(cost):
    return list(dict.fromkeys(span.stage for span in cost.spans))


def test_forward_is_unchanged_and_the_backward_follows():
    (_, layer), (_, step) = pair(method="roofline")
    names, before = in_order(step), in_order(layer)
    assert names[: len(before)] == before
    assert names[len(before) :] == BACKWARD
    for first, second in zip(layer.spans, step.spans, strict=False):
        assert first.stage == second.stage
        assert (first.duration_us_R == second.duration_us_R).all()


def test_fp8_encodes_weights_forward_and_gradients_backward():
    (_, layer), (_, step) = pair(precision="fp8_block")
    spans = Counter(span.stage for span in step.spans)
    assert spans["quantise"] == Counter(span.stage for span in layer.spans)["quantise"] + 1
    assert spans["quantise.backward"] == 2


def test_gemm_work_of_the_backward_is_twice_the_forwards():
    (cell, layer), (_, step) = pair()
    flops = Counter()
    for span in step.spans:
        flops[span.stage] += float(span.flops_R.sum())
    for gemm in ("gemm1", "gemm2"):
        assert flops[f"{gemm}.dgrad"] == flops[f"{gemm}.wgrad"] == flops[gemm] > 0
    assert flops["shared_expert.backward"] == 2 * flops["shared_expert"] > 0
    assert flops["gate.backward"] == 2 * flops["gate"]
    assert step.flops == pytest.approx(3 * layer.flops)
    record = run_simulated(
        cell.model_copy(update={"scope": cell.scope.model_copy(update={"kind": "train_step"})})
    ).record
    assert record.tflops * record.latency_us == pytest.approx(
        3 * (r := run_simulated(cell).record).tflops * r.latency_us
    )


@pytest.mark.parametrize("dispatch", [{"strategy": "flat"}, NODES])
def test_wire_bytes_are_those_that_a_measured_step_counts(dispatch):
    cell = make_cell(scope="train_step", tokens=16, dispatch=dispatch)
    traffic = route_all(cell)
    plan = make_plan(cell, traffic, expert_map_of(cell, traffic))
    hidden, top_k, wire = cell.model.hidden, cell.model.top_k, 0
    for hop in plan.hops:
        leaving = int(hop.send_counts.sum() - hop.send_counts.trace())
        wire += leaving * (dispatch_row_bytes(cell) + combine_row_bytes(cell) + 2 * hidden + 2 * (hidden + top_k))
    record = run_simulated(cell).record
    assert record.wire_bytes == wire
    assert record.method == "roofline"
    assert record.scope == "train_step"


def test_exchanges_of_the_backward_count_as_combine_and_dispatch():
    (_, layer), (_, step) = pair(tokens=4096)
    assert step.parts_us["count_exchange"] == layer.parts_us["count_exchange"]
    legs = [leg.name for leg in step.legs]
    assert [name.rsplit(".", 1)[0] for name in legs] == ["dispatch", "combine", "combine.backward", "dispatch.backward"]
    assert 1.8 < step.parts_us["combine"] / layer.parts_us["combine"] < 2.2
    assert 1.8 < step.parts_us["dispatch"] / layer.parts_us["dispatch"] < 2.2
    assert sum(step.parts_us.values()) - step.hidden_us == pytest.approx(step.latency_us, rel=0.05)


def test_tensor_parallelism_reduces_the_tokens_gradients_too():
    (_, layer), (_, step) = pair(tp=2, ep=4)
    assert step.parts_us["tp_reduce"] == 2 * layer.parts_us["tp_reduce"] > 0


def test_memory_holds_float32_gradients_and_saved_rows():
    layer, step = (make_cell(scope=scope) for scope in ("layer", "train_step"))
    traffic = group_traffic(step)
    before, after = layer_fit(layer, traffic)[0].parts, layer_fit(step, traffic)[0].parts
    model = step.model
    weights = 3 * model.hidden * (model.num_experts // step.ep * model.moe_intermediate + model.shared_intermediate)
    assert after["gradients"] == 4 * weights
    assert after["saved_activations"] > 0
    assert {name: after[name] for name in before} == before


def test_without_tokens_or_peers():
    assert run_simulated(make_cell(scope="train_step", tokens=0)).record.status == "ok"
    alone = run_simulated(make_cell("gpt-oss-20b", scope="train_step", ep=1, dispatch={"strategy": "none"}))
    assert alone.record.wire_bytes == 0
    assert "combine.backward" not in {row["stage"] for row in alone.tables["stages"]}


def test_gradient_formats():
    got = {name: gradient_format(PRECISIONS[name]) for name in ("bf16", "fp8_row", "mxfp8")}
    assert {name: (g.format, g.granularity) for name, g in got.items()} == {
        "bf16": ("bf16", "none"), "fp8_row": ("e5m2", "row"), "mxfp8": ("e4m3", "mx"),
    }  # fmt: skip
    asked = NumberFormat(format="bf16")
    assert gradient_format(PRECISIONS["fp8_row"].model_copy(update={"gradients": asked})) == asked


def test_what_a_measured_step_refuses_is_not_priced():
    delayed = PRECISIONS["fp8_block"].model_copy(update={"scaling": "delayed"})
    record = run_simulated(make_cell(scope="train_step").model_copy(update={"precision": delayed})).record
    assert record.status == "unsupported"
    assert "delayed wants tensor-wide scales" in record.reason
    assert "train_step" in exchange_unsupported_reason(make_cell(scope="train_step"))
