"""Cells whose ``kernel`` is another library: run through its adapter beside ours, or unsupported with the reason."""

from dataclasses import replace
from importlib.metadata import version

import pytest

from kernels.adapters import ADAPTERS, PeerBroken
from tests.run.rank_gang import cell, model
from workbench import __version__
from workbench.run import peer
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.spec.scenario import GroupedGemmScope


@pytest.fixture(scope="module")
def alone():
    return open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)


@pytest.fixture
def torch_on_a_cpu(monkeypatch):
    """torch's grouped product runs on a CPU too, though not as what a GPU's figures are compared with."""
    table = ADAPTERS | {"torch": replace(ADAPTERS["torch"], devices=("cpu",))}
    monkeypatch.setattr(peer, "ADAPTERS", table)


def run(alone, **fields):
    changes = {key: fields.pop(key) for key in list(fields) if key == "kernel"}
    one = cell(ranks=1, strategy="none", **fields).model_copy(update=changes)
    return merge_reports(one, [run_rank(one, alone)])


@pytest.mark.parametrize("moe", [model(), model(bias=True, shared=False)])
def test_a_peer_runs_beside_ours_and_passes_the_same_gate(alone, torch_on_a_cpu, moe):
    ours, theirs = (run(alone, kernel=kernel, moe=moe).record for kernel in ("ours", "torch"))
    assert ours.status == theirs.status == "ok", theirs.reason
    assert (ours.kernel, theirs.kernel) == ("ours", "torch")
    assert (ours.kernel_version, theirs.kernel_version) == (__version__, version("torch"))
    assert theirs.math_path == "native"
    assert theirs.weight_bytes == ours.weight_bytes
    assert theirs.touched_experts == ours.touched_experts
    assert theirs.rel_error == pytest.approx(ours.rel_error, rel=0.5)
    assert "conversion_ms=" in theirs.flags
    assert ours.flags is None


def test_the_experts_of_a_peer_are_one_stage(alone, torch_on_a_cpu):
    outcome = run(alone, kernel="torch")
    assert [row["stage"] for row in outcome.tables["stages"]] == ["gate", "experts", "shared_expert", "finish"]


def test_pairs_of_other_ranks_reach_a_peer_as_dropped(alone, torch_on_a_cpu):
    one = cell(measured=(1,), strategy="none").model_copy(update={"kernel": "torch"})
    assert peer.find_peer(one, alone.device).request.has_dropped
    report = run_rank(one, alone)
    assert report.status == "ok", report.reason


def test_a_wrong_peer_does_not_pass(alone, monkeypatch):
    honest = ADAPTERS["torch"]

    def careless(experts, request):
        call = honest.prepare(experts, request)
        return lambda x, ids, weights: call(x, ids.flip(0), weights)

    table = ADAPTERS | {"torch": replace(honest, devices=("cpu",), prepare=careless)}
    monkeypatch.setattr(peer, "ADAPTERS", table)
    record = run(alone, kernel="torch").record
    assert record.status == "error"
    assert "differs from the float32 reference" in record.reason


@pytest.mark.parametrize(
    ("kernel", "precision", "words"),
    [
        ("vllm", "bf16", "pip install vllm"),
        ("deep_gemm", "fp8_block", "nvcc"),
        ("deep_gemm", "bf16", "no bf16 x bf16 experts"),
        ("trtllm", "bf16", "no adapter, so it cannot be measured; known: ours, torch, vllm"),
    ],
)
def test_a_peer_that_cannot_run_makes_the_cell_unsupported(alone, kernel, precision, words):
    record = run(alone, kernel=kernel, precision=precision).record
    assert record.status == "unsupported"
    assert words in record.reason


def test_torch_falls_back_to_the_plain_path_where_it_has_no_grouped_product(alone):
    record = run(alone, kernel="torch", precision="mxfp8").record
    assert record.status == "ok", record.reason
    assert record.math_path == "emulated"
    assert record.kernel_version == __version__


def test_a_broken_peer_is_unsupported_and_says_so(alone, monkeypatch):
    def broken(experts, request):
        raise PeerBroken("torch is installed and cannot be imported: OSError: no libnvrtc")

    monkeypatch.setattr(peer, "ADAPTERS", {"torch": replace(ADAPTERS["torch"], devices=("cpu",), prepare=broken)})
    record = run(alone, kernel="torch").record
    assert record.status == "unsupported"
    assert "no libnvrtc; get it with" in record.reason


def test_peers_have_no_microbenchmarks(alone):
    scope = GroupedGemmScope(kind="grouped_gemm", groups=4, m=8, n=32, k=32)
    record = run(alone, kernel="vllm", scope=scope).record
    assert record.status == "unsupported"
    assert "whole layer" in record.reason
