"""Scopes without a model: bare exchange, grouped GEMM, encoding."""

import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.run.simulated import run_simulated

GEMM = {"kind": "grouped_gemm", "groups": 32, "m": 4096, "n": 4096, "k": 7168}


def micro(scope, **arguments):
    return run_simulated(make_cell(None, scope=scope, ep=arguments.pop("ep", 1), **arguments))


def test_all_to_all_over_sizes_reaches_the_link_and_no_more():
    speeds = [
        micro({"kind": "all_to_all", "bytes_per_rank": 2**power}, ep=16).record.busbw_gb_per_s for power in (10, 20, 30)
    ]
    assert speeds == sorted(speeds)
    # the NIC carries the 8 of 15 foreign parts that leave the node, so the bus figure may exceed its 50 GB/s
    assert speeds[-1] == pytest.approx(50 * 15 / 8, rel=0.01)


def test_all_to_all_bytes_and_reasons():
    record = micro({"kind": "all_to_all", "bytes_per_rank": 1 << 20}, ep=16).record
    assert record.bytes_per_rank == 1 << 20
    assert record.wire_bytes == 16 * (1 << 20) * 15 // 16 == record.scale_up_bytes + record.scale_out_bytes
    refused = micro({"kind": "all_to_all", "bytes_per_rank": 1 << 20}, ep=16, dispatch={"strategy": "node_dedup"})
    assert refused.record.status == "unsupported"
    assert "node_dedup" in refused.record.reason
    skewed = micro({"kind": "all_to_all", "bytes_per_rank": 1 << 20}, ep=16, skew="zipf")
    assert "skew" in skewed.record.reason


def test_grouped_gemm_is_compute_bound_when_tall_and_memory_bound_when_flat():
    tall = micro(GEMM | {"m": 65536}).record
    assert tall.bound_by == "compute"
    assert 0.9 * 989 < tall.tflops <= 989
    flat = micro(GEMM | {"m": 32}).record
    assert flat.bound_by == "memory"
    assert 0.9 * 4800 < flat.hbm_gb_per_s <= 4800
    assert micro(GEMM | {"m": 4}).record.latency_us < 0.2 * flat.latency_us, "four rows touch four groups"
    empty = micro(GEMM | {"m": 0}).record
    assert empty.status == "ok"
    assert empty.tflops is None


def test_grouped_gemm_encodes_narrow_activations():
    outcome = micro(GEMM, precision="fp8_block")
    assert [row["stage"] for row in outcome.tables["stages"]] == ["quantise", "gemm1"]
    record = outcome.record
    assert record.quantise_us + record.compute_us == pytest.approx(record.latency_us)
    assert record.compute_us < micro(GEMM).record.compute_us


def test_quantize_is_bound_by_memory():
    scope = {"kind": "quantize", "rows": 65536, "columns": 7168}
    record = micro(scope, precision="fp8_block").record
    assert record.bound_by == "memory"
    moved = 65536 * (2 * 7168 + 7168 + 4 * 56)
    assert record.latency_us == pytest.approx(3 + moved / 4.8e6)
    nothing = micro(scope).record
    assert nothing.status == "unsupported"
    assert "bf16" in nothing.reason


def test_a_gemm_larger_than_the_memory_is_infeasible():
    record = micro(GEMM | {"groups": 2048}, cluster=cluster_of("rtx-4090", gpus=1)).record
    assert record.status == "infeasible"
    assert record.shortage_bytes > 0
    assert record.latency_us is None
