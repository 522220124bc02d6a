"""A Ray cluster of three hosts: ``moe-workbench run --address`` on it, what breaks cells there, and what is kept."""

import json
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from workbench.store.progress import read_events
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder, list_runs

RESULTS = "/tmp/ray/results"
"""On a file system that only the submitting host has."""
LIMIT_S = 150
SCENARIO = """
name: hosts
scope: {kind: all_to_all, bytes_per_rank: 64KiB}
engine: measure
measure: {warmup: 1, min_samples: 100000, max_seconds: 1.5}
groups:
  - name: found
    matrix: {workload.seed: [0, 1, 2, 3]}
  - name: said
    cluster: {nodes: 4, gpus_per_node: 1}
"""
KILLED, CUT, SAID = 1, 3, 4
"""Places of the cells in the plan: one whose rank is killed, one whose host is cut off, one on two hosts alone."""


def command(cluster, *arguments):
    where = ["--address", cluster.address, "--results", RESULTS]
    return [sys.executable, "-m", "workbench.cli.main", "run", *arguments, *where]


def await_cells(run: RunFolder, number: int) -> None:
    """Returns a moment after that many cells have ended, when the next one is under way."""
    deadline = time.monotonic() + LIMIT_S
    while sum(event["event"] == "cell" for event in read_events(run.progress_path)[0]) < number:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)


def the_run(cluster, *, within_s: float = 60) -> RunFolder:
    results = cluster.path(0, RESULTS)
    deadline = time.monotonic() + within_s
    while not results.is_dir() or not list_runs(results):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (info,) = list_runs(results)
    return RunFolder(path=Path(info.path), run_id=info.run_id)


def cells_of(run: RunFolder) -> pd.DataFrame:
    """Cells in planned order."""
    frame = read_table(run, "cells").frame
    seeds = frame["cell_json"].map(lambda text: json.loads(text)["workload"]["seed"])
    return frame.assign(order=seeds + SAID * (frame["group"] == "said")).sort_values("order").reset_index(drop=True)


@pytest.fixture(scope="module")
def broken(cluster):
    """A run under which a rank was killed and then a host cut off: its cells, events, log and exit status."""
    scenario = cluster.folder / "hosts.yaml"
    scenario.write_text(SCENARIO)
    log = cluster.folder / "run.log"
    process = cluster.start(0, command(cluster, str(scenario)), log=log)
    run = the_run(cluster)
    await_cells(run, KILLED)
    victim = cluster.pids(1, "ray::RankActor")[0]
    cluster.run(1, ["kill", "-KILL", str(victim)], timeout=10)
    await_cells(run, CUT)
    cluster.cut(2)
    started = time.monotonic()
    await_cells(run, CUT + 1)
    seconds = time.monotonic() - started
    status = process.wait(timeout=LIMIT_S)
    return run, cells_of(run), log.read_text(), status, seconds


def test_topology_is_found_and_records_come_back_to_the_submitting_host(broken, cluster):
    _, cells, log, _, _ = broken
    found = cells[cells["group"] == "found"]
    assert set(zip(found["nodes"], found["gpus_per_node"], found["ep"], strict=True)) == {(3, 2, 6)}
    assert "gang of 6 cpu ranks on 3 nodes is up on h0, h1, h2" in log
    sound = found.iloc[0]
    assert sound["status"] == "ok"
    assert pd.isna(sound["flags"])
    block = 64 * 1024 // 6
    assert sound["scale_out_bytes"] == 6 * 4 * block
    assert [cluster.path(host, RESULTS).exists() for host in range(3)] == [True, False, False]


def test_w04_a_killed_rank_costs_its_cell_and_not_the_next(broken):
    _, cells, _, status, _ = broken
    assert cells["status"][KILLED] == "error"
    assert "died while running the cell: its process ended" in cells["reason"][KILLED]
    assert [cells["status"][cell] for cell in (0, 2)] == ["ok", "ok"]
    assert status == 1


def test_a_host_that_is_cut_off_ends_the_cell_with_its_ranks_and_the_next_cell_works(broken):
    _, cells, _, _, seconds = broken
    assert cells["status"][CUT] == "error"
    assert cells["reason"][CUT].startswith("ranks 4, 5 died while running the cell: its node left the cluster")
    assert seconds < 60
    assert cells["status"][SAID] == "ok"


def test_a_scenario_that_says_its_nodes_has_them_as_virtual_ones(broken):
    _, cells, log, _, _ = broken
    said = cells.iloc[SAID]
    assert (said["nodes"], said["gpus_per_node"], said["flags"]) == (4, 1, "virtual_nodes")
    assert "gang of 4 cpu ranks on 4 nodes is up on h0, h1" in log


def test_resuming_on_the_restored_cluster_runs_what_was_lost_and_nothing_else(broken, cluster):
    run, before, _, _, _ = broken
    cluster.restore(2)
    cluster.crash(2)
    cluster.start_ray([2])
    done = cluster.run(0, command(cluster, "--resume", run.run_id), timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    after = cells_of(run)
    assert set(after["status"]) == {"ok"}
    kept = before["status"] == "ok"
    pd.testing.assert_series_equal(after["latency_us"][kept], before["latency_us"][kept])
    assert after["num_samples"][CUT] > 0


def test_w07_w14_an_address_where_no_cluster_is_ends_in_one_line(cluster):
    done = cluster.run(1, [*command(cluster, "all-to-all")[:-4], "--address", f"{cluster.ip(1)}:{6399}"], timeout=60)
    assert done.returncode == 2
    assert "nothing listens there" in done.stderr
    assert Path(RESULTS).exists() is False


@pytest.fixture(scope="module")
def faults(cluster):
    """What the driver on the first host told of each fault, by name."""
    cluster.set_rate(None)
    done = cluster.run(0, [sys.executable, "-m", "tests.cluster.faults", cluster.address], timeout=LIMIT_S)
    cluster.set_rate(200)
    assert done.returncode == 0, done.stderr
    told = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert all(line.get("after", "ok") == "ok" for line in told.values())
    return told


def test_ranks_are_numbered_host_by_host_and_meet_on_their_link(faults):
    assert faults["sound"]["status"] == "ok"
    assert faults["sound"]["seats"] == [[rank, f"h{rank // 2}", "eth0"] for rank in range(6)]


def test_a_rank_without_tokens_takes_part(faults):
    assert faults["empty"]["status"] == "ok"


def test_a_slow_rank_is_seen(faults):
    assert faults["slow"]["status"] == "ok"
    assert faults["slow"]["slowest"] == 3
    assert faults["slow"]["rank_max_us"] >= 50_000


def test_counts_that_do_not_match_end_the_cell_at_once(faults):
    assert faults["lies"]["status"] == "error"
    assert "row counts [15, 1, 15, 0, 16, 0] arrive, the plan says [15, 0, 15, 0, 16, 0]" in faults["lies"]["reason"]
    assert faults["lies"]["reason"].startswith("rank 0: row counts")
    assert faults["lies"]["seconds"] < 10


def test_w09_large_answers_from_other_hosts_pass_through_a_small_store(faults, cluster):
    assert faults["large"]["grown"] < 64 * 2**20
    kept = [path for host in range(3) for path in cluster.path(host, "/tmp/ray").rglob("*") if "spilled" in str(path)]
    assert [path for path in kept if path.is_file()] == []
