"""The commands over finished runs, through main()."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.sample_run import write_sample_run
from workbench.cli.main import main
from workbench.store.parts import part_path
from workbench.store.reader import read_table
from workbench.store.run_folder import open_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_sample_run(folder)
    return folder


@pytest.fixture
def call(results, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, results_dir=results):
        status = main([*arguments, "--results", str(results_dir)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def strict(text):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_runs_in_both_forms(call, tmp_path):
    status, out, _ = call("runs")
    assert status == 0
    assert "finished" in out
    assert "44 ok, 1 unsupported, 1 infeasible, 1 error" in out
    status, out, _ = call("runs", "--format", "json")
    (info,) = strict(out)["runs"]
    assert (status, info["name"], info["counts"]["ok"]) == (0, "sample", 44)
    status, out, _ = call("runs", results_dir=tmp_path)
    assert status == 0
    assert "start one with: moe-workbench run SCENARIO" in out
    assert strict(call("runs", "--format", "json", results_dir=tmp_path)[1]) == {"runs": [], "problems": []}


def test_show_keeps_devices_apart_and_says_why(call):
    status, out, _ = call("show", "latest")
    assert status == 0
    measured, _, simulated = out.partition("simulated, for h200-sxm")
    assert "measured, on cpu, median of 40 samples" in measured
    assert "say nothing about how precisions rank on a GPU" in measured
    assert "say nothing about how precisions rank" not in simulated
    assert "unsupported: strategy bruck is not built yet" in simulated
    assert "error: rank 2 died: signal 9" in measured
    assert "no error band established yet" in simulated


def test_show_as_strict_json(call):
    status, out, _ = call("show", "sample", "--format", "json")
    answer = strict(out)
    assert status == 0
    assert answer["run"]["status"] == "finished"
    assert answer["run"]["bad_files"] == []
    assert len(answer["cells"]) == 47
    assert answer["cells"][0]["num_samples"] == 40
    assert answer["cells"][-1]["latency_us"] is None


def test_show_names_what_it_passed_over(call, tmp_path):
    run = write_sample_run(tmp_path)
    bad = part_path(run.path, "cells", 9)
    bad.write_bytes(b"")
    run.progress_path.write_bytes(run.progress_path.read_bytes()[:-5])
    status, out, _ = call("show", "latest", results_dir=tmp_path)
    assert status == 0
    assert "unreadable, passed over: cells/part-000009.parquet" in out
    assert "progress.jsonl line 49 is torn" in out
    answer = strict(call("show", "latest", "--format", "json", results_dir=tmp_path)[1])
    assert answer["run"]["bad_files"] == ["cells/part-000009.parquet"]
    assert answer["run"]["torn_lines"] == [49]


def test_unknown_run_is_refused_with_the_nearest(call, results):
    status, out, err = call("show", "sampel")
    assert (status, out) == (2, "")
    assert open_run(results, "latest").run_id in err
    assert "Traceback" not in err


def test_a_file_where_results_should_be_is_refused(call, tmp_path):
    (tmp_path / "file").write_text("")
    for command in (["runs"], ["show"], ["export"], ["report"], ["dashboard"]):
        status, _, err = call(*command, results_dir=tmp_path / "file")
        assert (status, "is not a folder" in err) == (2, True), command


def test_compare_by_and_across(call, results):
    run = open_run(results, "latest").run_id
    status, out, _ = call("compare", run, "--by", "precision")
    assert status == 0
    assert "6 faster, 24 unclear" in out
    answer = strict(call("compare", run, "--by", "precision", "--format", "json")[1])
    assert {row["verdict"] for row in answer["cells"] if row["device"] == "cuda"} == {"faster"}
    answer = strict(call("compare", run, run, "--format", "json")[1])
    assert len(answer["cells"]) == 47
    assert {row["verdict"] for row in answer["cells"]} <= {"same", "unclear"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "latest"), "give either --by PATH or a second run"),
        (("compare", "latest", "latest", "--by", "precision"), "give either --by PATH or a second run"),
        (("compare", "latest", "latest", "--baseline", "x"), "--baseline: belongs to --by"),
        (("compare", "latest", "--by", "presision"), "nearest: precision"),
        (("compare", "latest", "--against", "latest", "--by", "precision"), "give either --by PATH or a second run"),
        (("compare", "latest", "--against", "latest", "--fail-if", "slow:5"), "write slower:5%"),
        (("compare", "latest,latest", "--by", "precision"), "is given twice"),
        (("export", "latest", "--format", "parquet"), "--format parquet: needs --output FILE"),
        (("export", "latest", "--table", "stage"), "no table 'stage'"),
    ],
)
def test_refusals_name_the_mend(call, arguments, message):
    status, _, err = call(*arguments)
    assert status == 2
    assert message in err


def test_export_csv_and_chrome_trace(call, tmp_path):
    status, out, _ = call("export", "latest", "--format", "csv")
    assert status == 0
    assert len(pd.read_csv(io.StringIO(out))) == 47
    target = tmp_path / "deep" / "trace.json"
    assert call("export", "latest", "--format", "chrome-trace", "-o", str(target))[0] == 0
    events = strict(target.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) >= 44 * 4 * 9  # of the simulated cells that are priced here all ranks
    assert {"name", "ts", "dur", "pid", "tid"} <= set(spans[0])
    assert len({event["args"]["name"] for event in events if event["name"] == "process_name"}) == 44


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_exported_run_comes_back_by_import(call, results, tmp_path, form):
    target = tmp_path / f"run.{form}"
    assert call("export", "latest", "--format", form, "-o", str(target))[0] == 0
    status, out, err = call("import", str(target), results_dir=tmp_path / "again")
    assert (status, err) == (0, "")
    old, new = open_run(results, "latest"), open_run(tmp_path / "again", "latest")
    assert new.run_id in out
    assert new.manifest()["name"] == "sample"
    assert new.manifest()["original_run_id"] == old.run_id
    (info,) = strict(call("runs", "--format", "json", results_dir=tmp_path / "again")[1])["runs"]
    assert (info["status"], info["total"], info["counts"]["ok"]) == ("finished", 47, 44)
    for table in ("cells", "samples") if form == "json" else ("cells",):
        before, after = (read_table(run, table).frame.drop(columns="run_id", errors="ignore") for run in (old, new))
        pd.testing.assert_frame_equal(before, after)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", b"{", "not JSON"),
        ("x.json", b"[]", "has no `form: moe-workbench-run`"),
        ("x.json", b'{"form": "moe-workbench-run", "cells": [{"cell_id": "a"}]}', "a cell has no status, engine"),
        ("x.parquet", b"PAR1", "not a readable Parquet file"),
        ("x.csv", b"a,b", "of no form that is known; import takes what"),
        ("missing.json", None, "no such file"),
        (".", None, "is not a file"),
    ],
)
def test_import_refuses_what_it_cannot_read(call, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    status, _, err = call("import", str(tmp_path / name), results_dir=tmp_path / "results")
    assert status == 2
    assert message in err
    assert not (tmp_path / "results").exists()


def test_r12_names_are_printed_under_an_ascii_locale(tmp_path):
    write_sample_run(tmp_path, name="专家 ě")
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "200"}
    code = "import sys; from workbench.cli.main import main; sys.exit(main())"
    for command in (["runs"], ["show", "latest"], ["show", "latest", "--format", "json"]):
        line = [sys.executable, "-c", code, *command, "--results", tmp_path]
        done = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "专家 ě" in done.stdout.decode("utf-8")


def test_runs_are_shown_without_torch_ray_or_the_packages_of_the_dashboard(results):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('plotly', 'streamlit', 'duckdb', 'ray', 'triton')))\n"
        "from workbench.cli.main import main; status = main(sys.argv[1:])\n"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    for command in (["show", "latest"], ["compare", "latest", "--by", "precision"], ["export", "latest"]):
        line = [sys.executable, "-c", code, *command, "--results", results]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode()
