"""Rooflines: touched experts, FLOPs, which math multiplies a precision, figures above a peak."""

import numpy as np
import pytest

from tests.simulate.cells import make_cell
from workbench.run.simulated import run_simulated
from workbench.simulate.compute import Rates, Stage, above_peak, bound_by, expert_flops, gemm_stage, math_path
from workbench.spec.catalog import resolve_cluster
from workbench.spec.cluster import ClusterRef
from workbench.spec.precision import PRECISIONS

RATES = Rates(bytes_per_us=4.8e6, expert_flops_per_us=1e9, wide_flops_per_us=1e9, launch_us=3.0, math_path="native")


def part(name):
    return resolve_cluster(ClusterRef(hardware=name)).hardware


def test_e04_only_touched_experts_are_read():
    num_bytes = 14_989_000_000 / 170
    one = np.ones(1)
    stage = gemm_stage(
        "gemm1", rows_R=0 * one, touched_R=170 * one, out=4096, inner=7168, weight_bytes=num_bytes, in_row_bytes=1,
        flops_per_us=1e9,
    )  # fmt: skip
    assert stage.bytes_R[0] == pytest.approx(14.989e9)
    h200, bf16 = part("h200-sxm"), PRECISIONS["bf16"]
    active, every = 14.989e9 / 3.77e-3 / 1e9, 22.564e9 / 3.77e-3 / 1e9
    assert active == pytest.approx(3976, abs=1)
    assert every == pytest.approx(5985, abs=1)
    assert not above_peak(hbm_gb_per_s=active, tflops=None, hardware=h200, precision=bf16)
    assert above_peak(hbm_gb_per_s=every, tflops=None, hardware=h200, precision=bf16)
    assert above_peak(hbm_gb_per_s=None, tflops=1000.0, hardware=h200, precision=bf16)
    assert not above_peak(hbm_gb_per_s=None, tflops=1000.0, hardware=h200, precision=PRECISIONS["fp8_block"])


def test_e04_touched_experts_follow_the_routing():
    one, many = (make_cell(ep=1, tokens=tokens, precision="fp8_block") for tokens in (1, 64))
    few = run_simulated(one).record
    assert few.touched_experts == 8
    lots = run_simulated(many).record
    assert 200 < lots.touched_experts <= 256
    skewed = run_simulated(make_cell(ep=1, tokens=64, precision="fp8_block", skew={"kind": "zipf", "alpha": 2.0}))
    assert skewed.record.touched_experts < lots.touched_experts
    assert skewed.record.latency_us < lots.latency_us, "fewer experts, fewer bytes"


def test_e06_flops_of_three_matrices_and_top_k():
    shape = {"top_k": 2, "hidden": 4096, "intermediate": 14336}
    assert expert_flops(1, **shape) == 704_643_072
    assert expert_flops(1024, **shape) == 721_554_505_728
    gemm = [
        gemm_stage(name, rows_R=np.array([2.0]), touched_R=np.array([2.0]), out=out, inner=inner, weight_bytes=1,
                   in_row_bytes=1, flops_per_us=1.0)
        for name, out, inner in (("gemm1", 2 * 14336, 4096), ("gemm2", 4096, 14336))
    ]  # fmt: skip
    assert sum(stage.flops_R[0] for stage in gemm) == 704_643_072


def test_e06_flops_do_not_depend_on_the_number_of_experts():
    rates = []
    for experts in (8, 64):
        record = run_simulated(make_cell({"base": "mixtral-8x7b", "num_experts": experts}, ep=8, tokens=1024)).record
        rates.append(record.tflops * record.latency_us)
    assert rates[0] == pytest.approx(721_554_505_728 / 1e6)
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize(
    ("hardware", "precision", "tflops", "path"),
    [
        ("h200-sxm", "bf16", 989, "native"),
        ("h200-sxm", "fp8_block", 1979, "native"),
        ("h200-sxm", "mxfp4_w4a16", 989, "upcast"),
        ("cpu", "fp8_block", part("cpu").bf16_dense_tflops, "emulated"),
        ("h200-sxm", "mxfp4_w4a8", 1979, "upcast"),
        ("h200-sxm", "nvfp4", 989, "upcast"),
        ("h200-sxm", "mxfp8", 989, "upcast"),
        ("mi300x", "mxfp8", part("mi300x").bf16_dense_tflops, "upcast"),
        ("b200-sxm", "mxfp8", 4500, "native"),
        ("a100-sxm", "fp8_block", 312, "upcast"),
        ("b200-sxm", "nvfp4", 9000, "native"),
        ("b200-sxm", "mxfp4_w4a8", 4500, "native"),
        ("b200-sxm", "nvfp4_w4a16", 2250, "upcast"),
    ],
)
def test_math_path_follows_the_peaks(hardware, precision, tflops, path):
    assert math_path(part(hardware), PRECISIONS[precision]) == (tflops, path)


def test_a_stage_takes_the_slower_of_memory_and_math_plus_launches():
    memory = Stage("a", np.array([4.8e6]), np.array([1.0]), 2, 1e9)
    math = Stage("b", np.array([1.0]), np.array([5e9]), 1, 1e9)
    assert memory.duration_us_R(RATES)[0] == pytest.approx(7.0)
    assert math.duration_us_R(RATES)[0] == pytest.approx(8.0)
    assert bound_by([math], RATES, rank=0, network_us=0) == "compute"
    assert bound_by([memory], RATES, rank=0, network_us=0) == "launch"
    assert bound_by([memory, math], RATES, rank=0, network_us=50) == "network"
