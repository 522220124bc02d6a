"""Which method prices a cell, what stands on its record, and what a forced method refuses."""

import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.run.simulated import run_simulated
from workbench.simulate.experts import choice_of, estimators_of, expert_work
from workbench.simulate.families import find_families, widened
from workbench.simulate.traffic import group_traffic
from workbench.spec.catalog import load_hardware
from workbench.spec.precision import PRECISIONS

ON_H200 = {"kernel": "vllm", "precision": "fp8_block", "ep": 8}


def record(**arguments):
    found = run_simulated(make_cell(**arguments)).record
    assert found.status == "ok", found.reason
    return found


@pytest.mark.parametrize(
    ("arguments", "method", "flag"),
    [
        ({}, "measured", None),
        ({"model": "mixtral-8x7b"}, "calibrated", None),
        (ON_H200, "published", None),
        (ON_H200 | {"model": "glm-4.5"}, "calibrated", None),
        ({"kernel": "trtllm", "precision": "nvfp4", "cluster": cluster_of("b200-sxm")}, "published", None),
        ({"cluster": cluster_of("h100-sxm")}, "calibrated", "transferred_from=h200-sxm"),
        ({"cluster": cluster_of("mi300x")}, "calibrated", "unvalidated_hardware"),
        ({"precision": "nvfp4", "cluster": cluster_of("b200-sxm")}, "roofline", None),
    ],
)
def test_the_best_method_there_is_prices_a_cell_and_is_named(arguments, method, flag):
    found = record(**arguments)
    assert found.method == method
    assert flag is None or flag in found.flags
    assert (found.error_band_pct is None) == (method == "roofline")
    if method != "roofline":
        assert found.band_low_us < found.latency_us < found.band_high_us
        half = 50 * (found.band_high_us - found.band_low_us) / found.latency_us
        assert found.error_band_pct == pytest.approx(half)


def test_a_method_can_be_forced():
    latencies = {}
    for method in ("best", "measured", "calibrated", "roofline"):
        found = record(method=method)
        assert found.method == ("measured" if method == "best" else method)
        latencies[method] = found.latency_us
    assert latencies["best"] == latencies["measured"]
    assert len(set(latencies.values())) == 3


def test_a_method_without_rows_is_refused_in_words():
    found = run_simulated(make_cell(method="published")).record
    assert found.status == "unsupported"
    assert found.reason.startswith("method published: no published row for kernel ours in bf16 on h200-sxm")
    assert "vllm" in found.reason


def test_the_expert_stages_and_the_messages_take_the_estimate():
    best, roof = record(ep=32), record(ep=32, method="roofline")
    for part in ("dispatch_us", "combine_us", "count_exchange_us", "compute_us"):
        assert getattr(best, part) > 1.05 * getattr(roof, part)
    assert best.quantise_us == roof.quantise_us


def test_a_slower_gpu_of_the_same_kind_takes_longer_and_its_band_is_wider():
    own, other = record(tokens=16), record(tokens=16, cluster=cluster_of("h100-sxm"))
    assert 1.2 < other.compute_us / own.compute_us < 4.8 / 3.35 * 1.05
    cells = [make_cell(tokens=16, method="calibrated", cluster=cluster_of(name)) for name in ("h200-sxm", "h100-sxm")]
    own_band, other_band = (choice_of(cell, group_traffic(cell)).band for cell in cells)
    assert other_band[1] / other_band[0] > own_band[1] / own_band[0]


def test_families_come_from_the_nearest_gpu():
    families, source = find_families(load_hardware("b300-sxm"), "sglang", PRECISIONS["fp8_block"])
    assert source in ("b200-sxm", "gb200-nvl72")
    assert {family.hardware for family in families} == {source}
    assert find_families(load_hardware("cpu"), "sglang", PRECISIONS["fp8_block"]) == ((), None)
    odd = PRECISIONS["fp8_block"].model_copy(update={"weights": PRECISIONS["fp8_row"].weights})
    assert find_families(load_hardware("h200-sxm"), "vllm", odd) == ((), None)


@pytest.mark.parametrize(
    ("strategy", "source"),
    [("low_latency", "deepep_generation"), ("node_dedup", "deepep_context"), ("none", "sglang_fused_moe_triton"),
     ("allgather_reduce_scatter", "sglang_fused_moe_triton")],
)  # fmt: skip
def test_what_brings_the_tokens_decides_which_kernels_rows_stand(strategy, source):
    cell = make_cell(kernel="sglang", precision="fp8_block", ep=8, dispatch={"strategy": strategy})
    assert {one.family.source for one in estimators_of(cell)} == {source}


def test_a_rank_that_holds_all_tokens_passes_over_the_others_pairs():
    cells = [make_cell(ep=8, dispatch={"strategy": name}) for name in ("flat", "allgather_reduce_scatter")]
    own, all_of_them = (expert_work(cell, group_traffic(cell)) for cell in cells)
    assert not own.others.any()
    assert all_of_them.others == pytest.approx(8 * 128 * 8 - all_of_them.pairs)


def test_two_independent_errors_make_a_wider_band():
    low, high = widened((0.9, 1.1), (0.8, 1.3))
    assert low < 0.8
    assert high > 1.3
    assert widened((0.9, 1.1), (1.0, 1.0)) == pytest.approx((0.9, 1.1))
