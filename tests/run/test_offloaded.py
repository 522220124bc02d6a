"""Cells with their experts in host memory: hit rates by hand from the same routing, outputs through the same gate."""

import numpy as np
import pytest

from tests.run.rank_gang import cell, model
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.run.offloaded import SPARE
from workbench.spec.dispatch import Offload
from workbench.spec.scenario import GroupedGemmScope
from workbench.workload.traffic import route_all

STEPS = 12


@pytest.fixture(scope="module")
def alone():
    return open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)


def offloaded(*, steps=STEPS, tokens=1, ranks=1, measured="all", kernel="ours", moe=None, scope=None, precision="bf16",
              strategy="none", **offload):  # fmt: skip
    one = cell(ranks=ranks, tokens=tokens, strategy=strategy, measured=measured, precision=precision, scope=scope,
               moe=moe or (None if scope else model(experts=32)), skew={"kind": "zipf", "alpha": 1.2})  # fmt: skip
    options = {"tier": "host", "resident_fraction": 0.5} | offload
    workload = one.workload.model_copy(update={"steps": steps})
    return one.model_copy(update={"offload": Offload(**options), "workload": workload, "kernel": kernel})


def run(one, alone):
    return merge_reports(one, [run_rank(one, alone)]).record


def asked(one):
    return [np.unique(route_all(one, step=step).ids).tolist() for step in range(one.workload.steps)]


def lru(requests, slots, resident):
    """Hits of an LRU that starts with ``resident``, oldest first."""
    kept, hits = list(resident), 0
    for experts in requests:
        hits += sum(e in kept for e in experts)
        missing = [e for e in experts if e not in kept]
        free = slots - len(kept)
        for _ in range(max(0, len(missing) - free)):
            kept.remove(next(e for e in kept if e not in experts))
        kept = [e for e in kept if e not in experts] + experts
    return hits


@pytest.mark.parametrize("prefetch", [False, True])
def test_hit_rate_of_lru_is_that_of_the_routing(alone, prefetch):
    """One token a step: with so few experts at once, foresight changes what waits, not what is kept."""
    one = offloaded(cache="lru", prefetch=prefetch)
    record, requests = run(one, alone), asked(one)
    total = sum(map(len, requests))
    assert record.status == "ok", record.reason
    hits = lru(requests, 16, range(16))
    assert record.hit_rate == pytest.approx(hits / total)
    expert_bytes = 2 * 3 * 256 * 128
    assert record.offload_bytes == round((total - hits) * expert_bytes / STEPS)
    assert record.weight_bytes == (16 + 1) * expert_bytes
    assert 0 < record.stall_us < record.latency_us


def test_pinned_experts_are_those_asked_for_most(alone):
    one = offloaded(cache="pinned")
    requests = asked(one)
    counts = np.bincount(np.concatenate(requests), minlength=32)
    by_use = np.argsort(-counts, kind="stable")
    pinned, spare = set(by_use[: 16 - 16 // SPARE].tolist()), by_use[16 - 16 // SPARE : 16].tolist()
    pins = sum(e in pinned for experts in requests for e in experts)
    others = lru([[e for e in experts if e not in pinned] for experts in requests], len(spare), sorted(spare))
    record = run(one, alone)
    assert record.hit_rate == pytest.approx((pins + others) / sum(map(len, requests)))


def test_without_a_cache_only_what_is_there_at_the_start_hits(alone):
    one = offloaded(cache="none")
    requests = asked(one)
    record = run(one, alone)
    assert record.hit_rate == pytest.approx(sum(e < 16 for e in requests[0]) / sum(map(len, requests)))


@pytest.mark.parametrize("cache", ["none", "lru", "lfu", "pinned"])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_every_cache_passes_the_gate(alone, cache, prefetch, fraction):
    record = run(offloaded(cache=cache, prefetch=prefetch, resident_fraction=fraction, tokens=16, steps=2), alone)
    assert record.status == "ok", record.reason
    assert record.rel_error < 0.01
    assert 0 <= record.hit_rate <= 1
    assert (record.hit_rate == 1) == (record.offload_bytes == 0)
    if fraction == 1.0 and cache != "none":
        assert record.hit_rate == 1


@pytest.mark.parametrize("precision", ["fp8_block", "mxfp4_w4a16"])
def test_other_formats_biases_and_input_weights(alone, precision):
    for moe in (model(bias=True, shared=False), model(weight_on="input")):
        record = run(offloaded(precision=precision, moe=moe, steps=2, tokens=8), alone)
        assert record.status == "ok", record.reason


def test_one_rank_of_a_group_offloads_its_share(alone):
    one = offloaded(ranks=4, measured=(1,), moe=model(), steps=2, tokens=16)
    record = run(one, alone)
    assert record.status == "ok", record.reason
    assert record.weight_bytes == (2 + 1) * 2 * 3 * 256 * 128
    assert record.flags == "ranks=1"


def test_a_wrong_slot_does_not_pass(alone, monkeypatch):
    from kernels.offload import ExpertCache

    honest = ExpertCache.fetch
    monkeypatch.setattr(ExpertCache, "fetch", lambda cache, experts: honest(cache, experts).clamp(max=0))
    record = run(offloaded(steps=1, tokens=16), alone)
    assert record.status == "error"
    assert "differs from the float32 reference" in record.reason


class Scripted:
    """A clock by which a pass takes 1,200 microseconds and a stage 12."""

    timer = "wall"

    def time(self, call):
        call()
        return 1_200.0

    def time_stages(self, stages):
        for _, call in stages:
            call()
        return [(name, 12.0) for name, _ in stages]


def test_times_are_those_of_a_step(alone, monkeypatch):
    monkeypatch.setattr("workbench.run.measured.clock_for", lambda device: Scripted())
    report = run_rank(offloaded(), alone)
    assert set(report.samples_us) == {1_200 / STEPS}
    assert report.first_call_us == 1_200 / STEPS
    assert report.stages == (("gate", 12.0), ("experts", 12.0), ("shared_expert", 12.0), ("finish", 12.0))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tier": "nvme"}, "offload.tier: nvme"),
        ({"compute": "cpu"}, "offload.compute: cpu"),
        ({"kernel": "vllm"}, "kernel: vllm"),
        ({"ranks": 4, "moe": model()}, "parallel.ranks"),
        ({"scope": GroupedGemmScope(kind="grouped_gemm", groups=4, m=8, n=32, k=32)}, "offload.tier"),
        ({"tier": "none"}, "workload.steps: 12"),
    ],
)
def test_what_cannot_be_offloaded_says_so(alone, fields, words):
    record = run(offloaded(**fields), alone)
    assert record.status == "unsupported"
    assert words in record.reason
