"""Real processes with a real all-to-all, on virtual nodes of 2 ranks; of 3 ranks the last has a node of its own."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.comm.exchange_cases import DTYPES, TOP_K, TRAFFICS, VARIANTS, exchange_cases, planned, rule_against
from workbench.spec.errors import Unsupported

ROOT = Path(__file__).parents[2]
LIMIT_S = 200
WORLDS = (1, 2, 3, 4, 6)


def _reports(folder: Path, backend: str, *worlds: int) -> dict[int, list[dict[str, str]]]:
    """What every rank of every group saw, by check."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.comm.exchange_ranks", str(folder), backend, *map(str, worlds)]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=LIMIT_S)
    return {w: [json.loads((folder / f"{w}-{rank}.json").read_text()) for rank in range(w)] for w in worlds}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return _reports(tmp_path_factory.mktemp("gloo"), "gloo", *WORLDS)


@pytest.fixture(params=WORLDS)
def seen(reports, request):
    return reports[request.param]


def _hold(seen, names):
    faults = {f"rank {rank}, {name}": report[name] for rank, report in enumerate(seen) for name in names
              if report[name] != "ok"}  # fmt: skip
    assert not faults, "\n".join(f"{where}:\n{what}" for where, what in faults.items())


def test_n01_zero_rows_from_or_to_any_rank_do_not_hang(reports):
    for world in WORLDS[1:]:
        _hold(reports[world], ["n01"])


def test_n03_split_checks_refuse_with_the_numbers(reports):
    for world in WORLDS[1:]:
        _hold(reports[world], ["n03"])


def test_a_peer_that_does_not_come_ends_in_an_error_not_a_hang(reports):
    _hold(reports[2], ["missing"])


def test_a_gather_at_once_brings_what_single_messages_bring(reports):
    _hold(reports[2], ["gather"])


def test_memory_for_what_comes_in_is_the_callers_or_the_hops(reports):
    for world in WORLDS[1:]:
        _hold(reports[world], ["memory"])


def test_a_corrupted_byte_is_caught(reports):
    for world in WORLDS[1:]:
        _hold(reports[world], ["corruption", "counts"])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [*DTYPES, "mxfp8"])
def test_every_strategy_is_the_oracles_forward_and_backward_to_the_byte(seen, variant, dtype):
    names = [name for name, *case in exchange_cases() if case[:2] == [variant, dtype]]
    assert len(names) == (1 if dtype == "mxfp8" else 4)
    _hold(seen, names)


@pytest.mark.parametrize("kind", TRAFFICS)
def test_no_strategy_drops_a_pair_however_skewed(kind):
    """All choices of all tokens arrive, but those of the traffic that sends a rank nothing; rules are named."""
    for world, variant in product(WORLDS, VARIANTS):
        plan, slots = planned(world, kind, variant)
        if isinstance(plan, Unsupported):
            assert rule_against(world, kind, variant) in str(plan)
            continue
        pairs = (slots >= 0).sum()
        assert plan.slot_loads().sum() == sum(arrivals.slots.size for arrivals in plan.arrivals) == pairs
        assert kind == "empty_rank" or pairs == sum(plan.tokens_R) * TOP_K


def test_node_dedup_sends_a_token_once_to_each_other_node(seen):
    _hold(seen, ["node_pairs"])


def test_identity_experts_replicas_and_the_strategy_without_exchange(seen):
    _hold(seen, ["identity", "replicas", "refusals"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gloo_stages_cuda_tensors_through_the_host(tmp_path):
    (reports,) = _reports(tmp_path, "gloo-cuda", 2).values()
    _hold(reports, list(reports[0]))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for every rank")
def test_nccl_carries_the_same_plans(tmp_path):
    world = min(4, torch.cuda.device_count())
    (reports,) = _reports(tmp_path, "nccl", world).values()
    _hold(reports, list(reports[0]))
