"""docs/clusters/slurm.sbatch on three hosts: the real ``ray symmetric-run``, with SLURM's own commands stood in for."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.hosts import ROOT, SETTINGS
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder, list_runs

STAND_INS = Path(__file__).with_name("slurm")
LIMIT_S = 150
SCENARIO = """
name: slurm
scope: {kind: all_to_all, bytes_per_rank: 64KiB}
engine: measure
measure: {warmup: 1, min_samples: 5, max_seconds: 0.5}
"""


@pytest.fixture(scope="module")
def batch(links):
    """What the script wrote, and where its results are."""
    scenario, results = links.folder / "slurm.yaml", links.folder / "slurm-results"
    scenario.write_text(SCENARIO)
    environment = {
        **os.environ, **SETTINGS, "PATH": f"{STAND_INS}:{SETTINGS['PATH']}",
        "MOEWB_HOLDERS": " ".join(map(str, links.holders)), "SLURM_JOB_NODELIST": "h[0-2]", "SLURM_NNODES": "3",
        # The head's own process counts as lost what it is stopping, and must not give up before it is done.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "25",
        "RAY_START_OPTIONS": "--num-cpus=2 --object-store-memory=100000000",
    }  # fmt: skip
    script = ROOT / "docs" / "clusters" / "slurm.sbatch"
    done = subprocess.run(
        ["bash", str(script), str(scenario), str(results)],
        env=environment, cwd=links.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done, results


def test_the_scenario_runs_over_all_nodes_of_the_allocation(batch):
    done, results = batch
    assert done.returncode == 0, done.stdout + done.stderr
    (info,) = list_runs(results)
    (cell,) = read_table(RunFolder(path=Path(info.path), run_id=info.run_id), "cells").frame.to_dict("records")
    assert (cell["status"], cell["nodes"], cell["gpus_per_node"], cell["ep"]) == ("ok", 3, 2, 6)
    assert "gang of 6 cpu ranks on 3 nodes is up on h0, h1, h2" in done.stdout + done.stderr


def test_ray_ends_with_the_script_on_every_node(batch, links):
    assert [links.pids(host, "raylet") + links.pids(host, "gcs_server") for host in range(3)] == [[], [], []]
