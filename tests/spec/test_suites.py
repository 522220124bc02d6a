"""Every suite that comes with the workbench plans, names itself, and says first which question it answers."""

import itertools

import pytest

from workbench.plan import count_cells, plan_cells
from workbench.spec.catalog import describe, names
from workbench.spec.scenario_file import load_scenario

SUITES = (
    "all-to-all", "deepseek-v3", "gpt-oss-120b", "grouped-gemm", "h200-reference", "kernels-h200",
    "kernels-sweep", "kimi-k2", "plan-search", "quickstart", "qwen3-235b",
    "serving-disaggregated", "ten-thousand-gpus", "training-dynamics",
)  # fmt: skip
MODEL_SUITES = {"deepseek-v3": "deepseek-v3", "kimi-k2": "kimi-k2", "qwen3-235b": "qwen3-235b-a22b",
                "gpt-oss-120b": "gpt-oss-120b"}  # fmt: skip
PRECISIONS = ("bf16", "fp8_block", "mxfp4_w4a16", "nvfp4_w4a16")


def planned(suite):
    return plan_cells(load_scenario(suite))


def test_the_suites_are_there():
    assert names("suites") == SUITES


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_plans_every_cell_once(suite):
    file = load_scenario(suite)
    cells = plan_cells(file)
    assert file.name == suite
    assert len(cells) == len({cell.cell_id for cell in cells}) == count_cells(file) <= 200
    assert 20 < len(describe("suites", suite)) < 120


def test_quickstart_measures_small_models_and_simulates_the_large_one():
    groups = {name: list(cells) for name, cells in itertools.groupby(planned("quickstart"), key=lambda c: c.group)}
    measured, simulated = groups["measured"], groups["simulated"]

    def met(cells, part):
        return {part(cell) for cell in cells}

    assert met(measured, lambda c: (c.engine, c.cluster.device, c.cluster.nodes, c.cluster.gpus_per_node, c.ep)) == {
        ("measure", "cpu", 2, 2, 4)
    }
    combinations = itertools.product(
        ("deepseek-v3-tiny", "gpt-oss-tiny"), PRECISIONS, ("flat", "node_dedup"), ("uniform", "power_law")
    )
    assert met(measured, lambda c: (c.model.name, c.precision.name, c.dispatch.strategy, c.workload.skew.kind)) == set(
        combinations
    )
    assert met(measured, lambda c: (c.measure.min_samples, c.measure.max_seconds < 1)) == {(10, True)}
    assert met(simulated, lambda c: (c.engine, c.model.name, c.cluster.hardware.name, c.ep, c.cluster.num_gpus)) == {
        ("simulate", "deepseek-v3", "h200-sxm", gpus, gpus) for gpus in (8, 32, 128)
    }
    assert met(simulated, lambda c: (c.precision.name, c.dispatch.strategy)) == set(
        itertools.product(PRECISIONS, ("flat", "node_dedup"))
    )


@pytest.mark.parametrize("suite", MODEL_SUITES)
def test_a_model_suite_asks_of_decode_and_prefill_and_measures_one_gpu(suite):
    cells = planned(suite)
    assert {cell.model.name for cell in cells} == {MODEL_SUITES[suite]}
    assert {cell.workload.phase for cell in cells if cell.engine == "simulate"} == {"decode", "prefill"}
    one_gpu = [cell for cell in cells if cell.engine == "measure"]
    assert one_gpu
    for cell in one_gpu:
        assert cell.measured_ranks == (0,)
        assert (cell.group, cell.dispatch.strategy, cell.cluster.device) == ("one-gpu", "none", "cuda")


def test_groups_of_144_gpus_ask_for_the_least_redundancy():
    redundant = {
        suite: {c.balance.placement.redundant_experts for c in planned(suite) if c.ep == 144}
        for suite in ("deepseek-v3", "kimi-k2")
    }
    assert redundant == {"deepseek-v3": {32}, "kimi-k2": {48}}


def test_the_reference_needs_one_gpu():
    cells = planned("h200-reference")
    assert {(c.engine, c.model.name, c.ep, c.measured_ranks) for c in cells} == {
        ("measure", "deepseek-v3", 8, (0,)), ("measure", "gpt-oss-120b", 1, (0,)),
    }  # fmt: skip
    assert {c.precision.name for c in cells} == {"bf16", "fp8_block", "mxfp4_w4a16", "nvfp4_w4a16"}


def test_microbenchmarks_vary_size_and_format():
    exchange = planned("all-to-all")
    assert {c.scope.bytes_per_rank for c in exchange} == {4096 * 4**power for power in range(8)}
    assert {c.engine for c in exchange} == {"measure", "simulate"}
    gemm = planned("grouped-gemm")
    assert {c.scope.kind for c in gemm} == {"grouped_gemm"}
    assert len({c.scope.m for c in gemm}) > 3
    assert {"bf16", "fp8_block", "nvfp4_w4a16"} <= {c.precision.name for c in gemm}


FP8_PEERS = {
    ("bf16", "ours"), ("bf16", "torch"), ("bf16", "vllm"), ("fp8_block", "ours"), ("fp8_block", "vllm"),
    ("fp8_block", "deep_gemm"), ("fp8_row", "ours"), ("fp8_row", "torch"),
}  # fmt: skip
FP4_PEERS = {
    *(("bf16", kernel) for kernel in ("ours", "torch", "vllm", "triton_kernels")),
    *(("mxfp4_w4a16", kernel) for kernel in ("ours", "triton_kernels")),
}


@pytest.mark.parametrize(
    ("model", "pairs"),
    [("deepseek-v3", FP8_PEERS), ("qwen3-235b-a22b", FP8_PEERS), ("gpt-oss-120b", FP4_PEERS)],
)
def test_kernels_stand_side_by_side_at_every_batch_size(model, pairs):
    cells = [cell for cell in planned("kernels-h200") if cell.group == model]
    tokens = (1, 16, 64, 256, 1024, 4096, 16384)
    assert {(c.precision.name, c.kernel, c.workload.tokens_per_rank) for c in cells} == {
        (*pair, count) for pair in pairs for count in tokens
    }
    assert [c.workload.tokens_per_rank for c in cells[:7]] == list(tokens), "weights are made once a sweep"
    for cell in cells:
        assert (cell.scope.kind, cell.ep, cell.dispatch.strategy) == ("layer_no_router", 1, "none")
        assert (cell.measure.cache, cell.measure.graph, cell.model.shared_intermediate) == ("warm", True, 0)
        assert cell.cluster.hardware.name == "h200-sxm"


def test_offload_of_half_the_experts_is_asked_with_and_without_foresight():
    cells = [cell for cell in planned("kernels-h200") if cell.group == "offload"]
    assert {(c.offload.tier, c.offload.resident_fraction) for c in cells} == {("host", 0.5)}
    assert {c.offload.cache for c in cells} == {"lru", "lfu", "pinned"}
    pairs = [(c.workload.tokens_per_rank, c.workload.steps, c.offload.prefetch) for c in cells]
    assert {(65536, 2, False), (65536, 2, True)} <= set(pairs)
