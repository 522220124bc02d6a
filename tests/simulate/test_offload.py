"""Offloaded experts: the replay against the kernels' own cache, copies on a clock by hand, and what tiers cost."""

import random

import pytest
import torch

from kernels.moe import prepare_weights
from kernels.offload import ExpertCache
from tests.run.test_offloaded import offloaded as measured_cell
from tests.simulate.cells import cluster_of, make_cell
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.run.simulated import run_simulated
from workbench.run.validation.offload import offload_section
from workbench.simulate.expert_cache import ExpertSlots, ahead_of
from workbench.simulate.memory import model_fit
from workbench.simulate.offload import PCIE_EFFICIENCY, link_bytes_per_us, offload_cost
from workbench.simulate.weights import expert_bytes
from workbench.spec.cluster import Host

EXPERTS = 12
HOST = Host(memory_gb=2000, memory_gb_per_s=400, nvme_gb_per_s=20)


@pytest.fixture(scope="module")
def host():
    generator = torch.Generator().manual_seed(5)
    w13 = torch.randn(EXPERTS, 16, 32, generator=generator).bfloat16()
    w2 = torch.randn(EXPERTS, 32, 8, generator=generator).bfloat16()
    return prepare_weights(w13, w2, precision="bf16")


def offloaded(*, host=HOST, tokens=1, steps=16, gpus=8, model="qwen3-30b-a3b", scope="layer", **offload):
    cluster = cluster_of(gpus=gpus).model_copy(update={"host": host})
    return make_cell(
        model, ep=gpus, tokens=tokens, scope=scope, cluster=cluster, workload={"steps": steps},
        skew={"kind": "zipf", "alpha": 1.0}, offload={"tier": "host", "resident_fraction": 0.5} | offload,
    )  # fmt: skip


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("policy", ["none", "lru", "lfu", "pinned"])
def test_the_replay_is_the_kernels_cache(host, policy, ahead):
    draw = random.Random(policy + str(ahead))
    for slots in (2, 5, 11, 12):
        pinned = draw.sample(range(EXPERTS), max(1, slots - 2)) if policy == "pinned" else []
        calls = [sorted(draw.sample(range(EXPERTS), draw.randint(1, EXPERTS))) for _ in range(20)]
        cache = ExpertCache(
            host, num_slots=slots, device=torch.device("cpu"), policy=policy, pinned=pinned, initial=range(slots)
        )
        mine = ExpertSlots(slots, policy, frozenset(pinned), range(slots))
        hits = copied = 0
        for call, after in zip(calls, [*calls[1:], []], strict=True):
            waves = mine.waves(call, overlap=ahead)
            assert waves == cache.waves(call, overlap=ahead)
            for index, wave in enumerate(waves):
                cache.fetch(wave)
                fetched = mine.fetch(wave)
                hits, copied = hits + fetched.hits, copied + len(fetched.copied)
                if ahead:
                    lacking, needed = ahead_of(waves[index + 1 :], mine)
                    cache.prefetch(lacking or after, using=[*wave, *needed])
                    copied += len(mine.prefetch(lacking or after, using=[*wave, *needed]))
                assert mine.resident == cache.resident
            cache.release()
            mine.release()
        assert (hits, copied * cache.expert_bytes) == (cache.counters.hits, cache.counters.copied_bytes)


def test_a_miss_is_an_expert_over_the_link():
    """One slot for one expert at a time: everything but the first expert is a miss, and nothing hides it."""
    cell = offloaded(gpus=1, tokens=1, steps=1, resident_fraction=0.01)
    cost = offload_cost(cell, expert_us=10.0, rest_us=5.0)
    one_bytes = expert_bytes(cell.model, cell.precision)
    misses = round((1 - cost.hit_rate) * 8)
    assert misses >= 7
    assert cost.bytes_per_step == misses * one_bytes
    assert cost.stall_us == pytest.approx(misses * one_bytes / (64e3 * PCIE_EFFICIENCY))
    assert cost.asking_us > 0


def test_everything_resident_costs_nothing_but_asking():
    cost = offload_cost(offloaded(resident_fraction=1.0), expert_us=10.0, rest_us=5.0)
    assert (cost.hit_rate, cost.stall_us, cost.bytes_per_step) == (1.0, 0.0, 0.0)
    ahead = offload_cost(offloaded(resident_fraction=1.0, prefetch=True), expert_us=10.0, rest_us=5.0)
    assert ahead.added_us == 0.0


def test_foresight_hides_copies_behind_the_work_and_changes_no_hit():
    plain, ahead = (
        offload_cost(offloaded(prefetch=prefetch), expert_us=300.0, rest_us=300.0) for prefetch in (False, True)
    )
    assert ahead.hit_rate == pytest.approx(plain.hit_rate, abs=0.03)
    assert ahead.stall_us < plain.stall_us / 2


def test_reuse_needs_steps_and_more_slots_hit_more():
    rates = [
        offload_cost(offloaded(gpus=1, resident_fraction=part), expert_us=1.0, rest_us=1.0).hit_rate
        for part in (0.2, 0.4, 0.6, 0.8)
    ]
    assert rates == sorted(rates)
    assert rates[0] > 0.2
    pinned = offload_cost(offloaded(gpus=1, resident_fraction=0.4, cache="pinned"), expert_us=1.0, rest_us=1.0)
    none = offload_cost(offloaded(gpus=1, resident_fraction=0.4, cache="none"), expert_us=1.0, rest_us=1.0)
    assert none.hit_rate < rates[1] < pinned.hit_rate


def test_links_are_shared_by_the_gpus_of_a_node():
    cell = offloaded()
    assert link_bytes_per_us(cell.cluster, tier="host") == 400e3 / 8
    assert link_bytes_per_us(cell.cluster, tier="nvme") == 20e3 / 8
    alone = cell.cluster.model_copy(update={"host": None})
    assert link_bytes_per_us(alone, tier="host") == 64e3 * PCIE_EFFICIENCY


def test_drives_are_slower_than_the_host_and_records_say_so():
    host, nvme = (run_simulated(offloaded(tier=tier)).record for tier in ("host", "nvme"))
    resident = run_simulated(offloaded(tier="none")).record
    assert host.status == nvme.status == "ok"
    assert host.hit_rate == nvme.hit_rate
    assert host.offload_bytes == nvme.offload_bytes > 0
    assert nvme.stall_us == pytest.approx(20 * host.stall_us)
    assert resident.latency_us < host.latency_us < nvme.latency_us
    assert resident.hit_rate is None
    assert host.weight_bytes < resident.weight_bytes
    assert nvme.bound_by == "offload"


def test_the_processor_computes_what_is_missing():
    """Bound by the host's memory: half of the experts, read there at an eighth of 400 GB/s."""
    cell = offloaded(compute="cpu", tokens=16, cache="pinned")
    cost = offload_cost(cell, expert_us=0.0, rest_us=0.0)
    assert cost.stall_us > 0
    assert cost.bytes_per_step < expert_bytes(cell.model, cell.precision)
    assert offload_cost(cell, expert_us=1e6, rest_us=0.0).stall_us < cost.stall_us


@pytest.mark.parametrize(("host", "offload", "words"), [
    (None, {"tier": "nvme"}, "nvme_gb_per_s"),
    (None, {"compute": "cpu"}, "memory_gb_per_s"),
])  # fmt: skip
def test_tiers_that_the_cluster_has_not_are_unsupported(host, offload, words):
    record = run_simulated(offloaded(host=host, **offload)).record
    assert record.status == "unsupported"
    assert words in record.reason


def test_a_host_too_small_is_infeasible_by_how_much():
    small = Host(memory_gb=1, memory_gb_per_s=400)
    record = run_simulated(offloaded(host=small)).record
    assert record.status == "infeasible"
    assert record.shortage_bytes == 128 * 2 * 3 * 2048 * 768 - 10**9
    assert f"({record.shortage_bytes} bytes)" in record.reason


def test_a_whole_model_fits_and_stalls_in_every_layer():
    """DeepSeek-V3 in FP8 is too large for eight H100 and fits with half of its experts outside."""
    cluster = cluster_of("h100-sxm", gpus=8).model_copy(update={"host": HOST})
    offload = {"tier": "host", "resident_fraction": 0.5, "prefetch": True}
    cells = [
        make_cell(scope="model", precision="fp8_block", tokens=8, cluster=cluster, workload={"steps": 4}, offload=tier)
        for tier in ({}, offload)
    ]
    assert run_simulated(cells[0]).record.status == "infeasible"
    record = run_simulated(cells[1]).record
    assert record.status == "ok"
    assert record.tpot_us > record.stall_us > 0
    assert 0 < record.hit_rate < 1
    whole, half = (model_fit(cell).parts["routed_experts"] for cell in cells)
    assert half == whole / 2


def test_measured_layers_of_an_h200_are_met():
    """Hits are those of the routing, so the same; bytes lack the padding of packed experts."""
    lines = {one.split: one for one in offload_section()}
    assert lines["hit_rate"].p90 == pytest.approx(0, abs=1e-4)
    assert lines["offload_bytes"].p90 < 3
    assert lines["stall_us without prefetch"].mape < 60
    assert lines["latency"].mape < 40
    assert lines["latency"].count == 6


@pytest.mark.parametrize("options", [
    {"cache": "lru"}, {"cache": "lfu", "prefetch": True, "resident_fraction": 0.3},
    {"cache": "pinned", "resident_fraction": 0.25},
])  # fmt: skip
def test_a_layer_measured_here_has_the_priced_hits_and_bytes(options):
    cell = measured_cell(tokens=3, **options)
    context = open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)
    measured = merge_reports(cell, [run_rank(cell, context)]).record
    priced = run_simulated(cell.model_copy(update={"engine": "simulate"})).record
    assert (priced.hit_rate, priced.offload_bytes) == (measured.hit_rate, measured.offload_bytes)
    assert priced.weight_bytes == measured.weight_bytes + cell.model.num_experts * (2 * cell.model.hidden + 4)
    assert (priced.stall_us > 0) == (measured.stall_us > 0)
