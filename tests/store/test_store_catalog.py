"""All cells of a store at once: right, also when its runs change, are damaged or of other versions; and quick."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.big_store import build_store
from tests.sample_run import make_cell, measured_outcome, simulated_outcome
from workbench.store import catalog as catalog_room
from workbench.store import query, run_folder
from workbench.store.catalog import open_catalog
from workbench.store.query import Between, count_cells, count_values, matching_runs, select_cells
from workbench.store.run_folder import create_run, foreign_entries, list_runs
from workbench.store.writer import Writer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    for number, precision in enumerate(("bf16", "fp8_block", "bf16")):
        write(folder, precision, tokens=(number + 1, 100))
    return folder


@pytest.fixture(params=["kept", "small"])
def store(request, tmp_path, monkeypatch, three_runs):
    """A store of three runs, once with a catalog that is kept and once as small stores are read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    least = 1 if request.param == "kept" else 99
    monkeypatch.setattr(catalog_room, "WORTH_KEEPING", least)
    monkeypatch.setattr(run_folder, "WORTH_KEEPING", least)
    return shutil.copytree(three_runs, tmp_path / "results")


def write(folder, precision, *, tokens):
    run = create_run(folder, name=precision, manifest={})
    with Writer(run) as writer:
        for number in tokens:
            writer.add(measured_outcome(make_cell(precision=precision, tokens=number), samples=6))
        writer.add(simulated_outcome(make_cell(engine="simulate", precision=precision), base_us=5.0))
    return run


def part(run):
    (path,) = (run.path / "cells").glob("part-*.parquet")
    return path


@pytest.fixture(params=["duckdb", "arrow"])
def reader(request, monkeypatch):
    monkeypatch.setattr(query, "_duckdb", lambda: request.param == "duckdb")


def test_questions_have_one_answer_by_either_reader(store, reader):
    catalog = open_catalog(store)
    runs = [info.run_id for info in list_runs(store)]
    assert count_cells(catalog) == 9
    measured = {"engine": ["measure"], "tokens_per_rank": Between(low=2)}
    assert count_cells(catalog, where=measured) == 5
    frame = select_cells(catalog, columns=["run_id", "tokens_per_rank"], where=measured, order_by="tokens_per_rank",
                         descending=True, limit=4)  # fmt: skip
    assert frame["tokens_per_rank"].tolist() == [100, 100, 100, 3]
    assert frame["run_id"].tolist()[:3] == sorted(runs)
    assert isinstance(frame["tokens_per_rank"].dtype, pd.Int64Dtype)
    assert len(select_cells(catalog, columns=["cell_id"], limit=4, offset=7)) == 2
    counts = count_values(catalog, columns=["precision", "num_samples"], where={"engine": ["measure"]})
    assert counts == {"precision": {"bf16": 4, "fp8_block": 2}, "num_samples": {6: 6}}
    assert count_values(catalog, columns=["num_samples"])["num_samples"] == {6: 6, None: 3}
    assert count_cells(catalog, where={"num_samples": [None]}) == 3
    assert count_cells(catalog, where={"num_samples": [None, "6"], "precision": []}) == 0
    assert matching_runs(catalog, where={"precision": ["fp8_block"]}) == [run for run in runs if "fp8_block" in run]
    with pytest.raises(ValueError, match="no run has a column 'precison'; nearest: precision"):
        count_cells(catalog, where={"precison": ["bf16"]})
    with pytest.raises(ValueError, match="tokens_per_rank: 'many' is no int64"):
        count_cells(catalog, where={"tokens_per_rank": ["many"]})


def test_the_catalog_follows_what_lies_there(store):
    assert count_cells(open_catalog(store)) == 9
    extra = write(store, "nvfp4_w4a16", tokens=(7,))
    assert count_cells(open_catalog(store)) == 11
    with Writer(extra) as writer:
        writer.add(measured_outcome(make_cell(precision="nvfp4_w4a16", tokens=7), base_us=77.0, noise=0, samples=5))
        writer.add(measured_outcome(make_cell(precision="nvfp4_w4a16", tokens=8), samples=5))
    catalog = open_catalog(store)
    assert count_cells(catalog) == 12
    mine = select_cells(catalog, columns=["latency_us"], where={"run_id": [extra.run_id], "tokens_per_rank": [7]})
    assert mine["latency_us"].tolist() == [77.0]
    shutil.rmtree(extra.path)
    assert count_cells(open_catalog(store)) == 9
    assert len(list_runs(store)) == 3


def test_a_cut_index_or_segment_is_made_again(store, tmp_path):
    assert count_cells(open_catalog(store)) == 9
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-9])
    assert (count_cells(open_catalog(store)), len(list_runs(store))) == (9, 3)
    for path in (tmp_path / "cache").rglob("*.parquet"):
        path.unlink()
    assert count_cells(open_catalog(store)) == 9


def test_many_segments_become_one(store, monkeypatch, tmp_path):
    monkeypatch.setattr(catalog_room, "MOST_SEGMENTS", 2)
    monkeypatch.setattr(catalog_room, "SEGMENT_RUNS", 1)
    monkeypatch.setattr(catalog_room, "STALE_S", -1.0)
    for _ in range(2):
        catalog = open_catalog(store)
        assert count_cells(catalog) == 9
    assert len(list((tmp_path / "cache").rglob("*.parquet"))) in (0, 1)


def test_runs_of_other_versions_stand_beside_one_another(store, reader):
    old, new, _ = [run_folder.open_run(store, info.run_id) for info in list_runs(store)]
    rows = pq.read_table(part(old))
    pq.write_table(rows.drop_columns(["overlap_degree", "scale_up_us"]), part(old))
    rows = pq.read_table(part(new))
    pq.write_table(rows.append_column("warmth", pa.array([1.5] * len(rows))), part(new))
    catalog = open_catalog(store)
    assert count_values(catalog, columns=["warmth"])["warmth"] == {None: 6, 1.5: 3}
    assert count_cells(catalog, where={"overlap_degree": [None]}) >= 3
    assert count_cells(catalog) == 9


def test_cut_empty_and_foreign_files_are_named_and_passed_over(store):
    cut, empty, torn = [run_folder.open_run(store, info.run_id) for info in list_runs(store)]
    part(cut).write_bytes(part(cut).read_bytes()[:900])
    (empty.path / "cells" / "part-000099.parquet").write_bytes(b"")
    (empty.path / "cells" / "notes.txt").write_text("mine")
    torn.progress_path.write_bytes(b'{"event": "run_st\n')
    (store / "todo.txt").write_text("x")
    (store / "photos").mkdir()
    (store / ".hidden").write_text("x")
    catalog = open_catalog(store)
    assert count_cells(catalog) == 6
    assert catalog.problems == open_catalog(store).problems
    assert sorted(problem.partition("/")[2] for problem in catalog.problems) == [
        "cells/notes.txt: foreign",
        f"cells/{part(cut).name}: cut or empty",
        "cells/part-000099.parquet: cut or empty",
        "progress.jsonl line 1: torn",
    ]
    assert foreign_entries(store) == ["photos", "todo.txt"]
    assert len(list_runs(store)) == 3


SCALE = """
import json, sys, time
from workbench.store.catalog import open_catalog
from workbench.store.query import Between, count_cells, count_values, matching_runs, select_cells
from workbench.store.run_folder import list_runs
store, took = sys.argv[1], {}
open_catalog(store); list_runs(store)
def timed(name, ask):
    for _ in range(2):  # the machine may be busy with something else
        start = time.perf_counter()
        answer = ask(open_catalog(store))
        took[name] = min(took.get(name, 9.0), time.perf_counter() - start)
    return answer
where = {"precision": ["fp8_block"], "engine": ["measure"], "tokens_per_rank": Between(3, 9)}
columns = ["run_id", "cell_id", "model", "precision", "latency_us"]
infos = timed("list", lambda _: list_runs(store))
number = timed("count", count_cells)
page = timed("page", lambda c: select_cells(c, columns=columns, where=where, order_by="latency_us", limit=100))
every = timed("every row", lambda c: select_cells(c, columns=columns))
values = timed("values", lambda c: count_values(c, columns=["model", "engine", "precision"], where=where))
runs = timed("runs", lambda c: matching_runs(c, where={"model": ["model-1"]}))
(high,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss counts the parent's too
peak = int(high.split()[1]) / 2**20
print(json.dumps([took, peak, [len(infos), number, len(page), len(every), len(runs), sum(values["model"].values())]]))
"""


def test_500_runs_with_200000_cells_answer_within_a_second_and_a_gigabyte(tmp_path):
    build_store(tmp_path / "results", runs=500, cells=400)
    done = subprocess.run(
        [sys.executable, "-c", SCALE, str(tmp_path / "results")],
        cwd=ROOT, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}, capture_output=True, timeout=120,
    )  # fmt: skip
    took, peak_gb, counts = json.loads(done.stdout)
    assert counts == [500, 200_000, 100, 200_000, 125, 3500]
    assert max(took.values()) <= 1.0, took
    assert peak_gb < 1.0
