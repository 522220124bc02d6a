"""Real processes with a real all-to-all: 2 ranks on one virtual node, 4 on two virtual nodes of 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.comm.gloo_ranks import SKEWS, checks

ROOT = Path(__file__).parents[2]
LIMIT_S = 120


@pytest.fixture(scope="module", params=[2, 4])
def seen(request, tmp_path_factory):
    """What every rank of one group saw, by check."""
    world, folder = request.param, tmp_path_factory.mktemp("gloo")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.comm.gloo_ranks"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), str(folder)], env=environment, cwd=ROOT)
        for rank in range(world)
    ]
    try:
        for process in ranks:
            process.wait(LIMIT_S)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


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
