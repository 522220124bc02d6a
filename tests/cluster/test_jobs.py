"""Runs as Ray jobs, submitted on a host that is not the head: what they measured comes back to that host."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.hosts import ROOT
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder, list_runs

SUBMITTER = 1
LIMIT_S = 100
SCENARIO = """
name: jobs
scope: {kind: all_to_all, bytes_per_rank: 64KiB}
engine: measure
measure: {warmup: 1, min_samples: 5, max_seconds: 0.5}
"""


@pytest.fixture(scope="module")
def scenario(cluster) -> Path:
    path = cluster.folder / "jobs.yaml"
    path.write_text(SCENARIO)
    return path


def check_cells(results: Path) -> None:
    """One run of one cell over all hosts lies there."""
    (info,) = list_runs(results)
    (cell,) = read_table(RunFolder(path=Path(info.path), run_id=info.run_id), "cells").frame.to_dict("records")
    assert (cell["status"], cell["nodes"], cell["gpus_per_node"], cell["ep"]) == ("ok", 3, 2, 6)


def test_submit_brings_its_results_back_to_the_submitting_host(cluster, scenario):
    results = "/tmp/ray/submitted"
    line = [sys.executable, "-m", "workbench.cli.main", "submit", str(scenario), "--address", cluster.job_server]
    done = cluster.run(SUBMITTER, [*line, "--results", results], timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gang of 6 cpu ranks on 3 nodes is up on h0, h1, h2" in done.stderr
    check_cells(cluster.path(SUBMITTER, results))
    assert not cluster.path(0, results).exists()


def test_plain_ray_job_submit_as_the_document_says_it(cluster, scenario):
    results = "/tmp/ray/plain"
    blocks = (ROOT / "docs" / "clusters.md").read_text().split("```")
    (block,) = [text for text in blocks if "ray job submit" in text and "sh -c" in text]
    line = block.strip().replace("http://HEAD:8265", cluster.job_server)
    line = line.replace("scenarios/quickstart.yaml", shlex.quote(str(scenario)))
    line = line.replace("--into results", f"--into {results}")
    done = cluster.run(SUBMITTER, ["bash", "-o", "pipefail", "-c", line], cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    check_cells(cluster.path(SUBMITTER, results))
