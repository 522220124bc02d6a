"""Real processes with a real all-to-all: 2 ranks on one virtual node, 4 on two virtual nodes of 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.comm.exchange_ranks import SKEWS, checks

ROOT = Path(__file__).parents[2]
LIMIT_S = 200


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
    return _reports(tmp_path_factory.mktemp("gloo"), "gloo", 2, 4)


@pytest.fixture(params=[2, 4])
def seen(reports, request):
    return reports[request.param]


def _hold(seen, names):
    faults = {f"rank {rank}, {name}": report[name] for rank, report in enumerate(seen) for name in names
              if report[name] != "ok"}  # fmt: skip
    assert not faults, "\n".join(f"{where}:\n{what}" for where, what in faults.items())


def test_n01_zero_rows_from_or_to_any_rank_do_not_hang(seen):
    _hold(seen, ["n01"])


def test_n03_split_checks_refuse_with_the_numbers(seen):
    _hold(seen, ["n03"])


def test_dispatch_equals_the_oracle_and_identity_experts_give_the_weights_back(seen):
    names = [name for name in checks(2) if name.startswith(("flat", "node_dedup"))]
    assert len(names) == 2 * 3 * len(SKEWS) * 2
    _hold(seen, names)


def test_a_corrupted_byte_is_caught(seen):
    _hold(seen, ["corruption", "counts"])


def test_replicas_and_the_strategy_without_exchange(seen):
    _hold(seen, ["replicas"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gloo_stages_cuda_tensors_through_the_host(tmp_path):
    (reports,) = _reports(tmp_path, "gloo-cuda", 2).values()
    _hold(reports, list(checks(2)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for every rank")
def test_nccl_carries_the_same_plans(tmp_path):
    world = min(4, torch.cuda.device_count())
    (reports,) = _reports(tmp_path, "nccl", world).values()
    _hold(reports, list(checks(world)))
