"""Stages of every rank, and the trace that Perfetto opens."""

import json
from itertools import pairwise

from tests.simulate.cells import cluster_of, make_cell
from workbench.cli.main import main
from workbench.run.every_rank import every_rank
from workbench.run.simulated import run_simulated

SCENARIO = """
name: traced
engine: simulate
model: deepseek-v3
cluster: {base: hgx-h100, nodes: 2}
workload: {tokens_per_rank: 64, skew: {kind: hot_rank, factor: 4}}
dispatch: {strategy: node_dedup, overlap: {kind: chunk, degree: 2}}
precision: fp8_block
matrix: {cluster.nodes: [1, 2]}
"""


def test_all_ranks_of_the_price_that_the_record_has():
    cell = make_cell(ep=16, cluster=cluster_of(gpus=16), skew={"kind": "hot_rank", "factor": 4})
    outcome = run_simulated(cell)
    rows = every_rank([cell])[cell.cell_id]
    assert {row["rank"] for row in rows} == set(range(16))
    kept = outcome.tables["stages"]
    ranks = {row["rank"] for row in kept}
    assert [row for row in rows if row["rank"] in ranks] == kept


def test_cells_beyond_the_limit_keep_their_two_ranks():
    cells = [make_cell(ep=8, tokens=tokens).model_copy(update={"cell_id": str(tokens)}) for tokens in (8, 16, 24)]
    assert list(every_rank(cells, max_ranks=20)) == ["8", "16"]


def test_the_trace_of_a_run_has_a_lane_for_each_rank_and_stream(tmp_path, capsys):
    path = tmp_path / "traced.yaml"
    path.write_text(SCENARIO)
    assert main(["run", str(path), "--results", str(tmp_path / "r")]) == 0
    target = tmp_path / "trace.json"
    assert (
        main(["export", "latest", "--results", str(tmp_path / "r"), "--format", "chrome-trace", "-o", str(target)]) == 0
    )
    events = json.loads(target.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    lanes = {pid: {name.split()[1] for (at, _), name in names.items() if at == pid} for pid in {at for at, _ in names}}
    assert sorted(len(ranks) for ranks in lanes.values()) == [8, 16]
    spans = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in spans} <= set(names)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
    for lane in names:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == lane)
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(mine)), names[lane]
