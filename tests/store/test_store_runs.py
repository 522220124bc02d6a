"""Run folders, progress lines, names and JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.sample_run import make_cell, measured_outcome, write_sample_run
from workbench.store.progress import append_event, read_events
from workbench.store.reader import read_table
from workbench.store.run_folder import create_run, list_runs, open_run
from workbench.store.strict_json import to_json
from workbench.store.text import safe_name
from workbench.store.writer import Writer

NAMES = ["google/gemma-2-9b-it", "../../x", "a:b", "n" * 300, "混合专家 ě", "..", "", "CON\x00\n"]


def strict(text: str):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_r01_nan_and_infinity_become_null(tmp_path):
    run = create_run(tmp_path, name="nan", manifest={"clock": float("nan")})
    with Writer(run) as writer:
        writer.add(measured_outcome(make_cell(), tflops=float("nan"), hbm_gb_per_s=float("inf")))
    rows = strict(to_json({"cells": read_table(run, "cells").frame}))["cells"]
    assert rows[0]["status"] == "ok"
    assert rows[0]["tflops"] is None
    assert rows[0]["hbm_gb_per_s"] is None
    assert strict((run.path / "manifest.json").read_text(encoding="utf-8"))["clock"] is None
    append_event(run.progress_path, {"event": "note", "x": float("-inf")})
    assert strict(run.progress_path.read_text(encoding="utf-8"))["x"] is None


def test_strict_json_takes_what_numpy_and_pandas_hold():
    value = {"a": np.float32(1.5), "b": pd.NA, "c": np.array([1.0, np.nan]), "d": pd.Timestamp(0), "e": Path("x")}
    assert strict(to_json(value)) == {"a": 1.5, "b": None, "c": [1.0, None], "d": "1970-01-01T00:00:00", "e": "x"}
    with pytest.raises(TypeError, match="no JSON form for object"):
        to_json({"x": object()})


def test_r03_torn_last_line_costs_only_itself(tmp_path):
    path = tmp_path / "progress.jsonl"
    append_event(path, {"event": "note", "text": "one"})
    append_event(path, {"event": "note", "text": "two"})
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    torn = path.read_bytes()
    append_event(path, {"event": "note", "text": "three"})
    events, torn_lines = read_events(path)
    assert [event["text"] for event in events] == ["one", "three"]
    assert torn_lines == [2]
    assert path.read_bytes().startswith(torn)


def test_progress_of_a_missing_file_is_empty(tmp_path):
    assert read_events(tmp_path / "progress.jsonl") == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_r10_any_name_stays_inside_the_results_folder(tmp_path, name):
    results = tmp_path / "results"
    run = create_run(results, name=name, manifest={})
    assert run.path.parent == results
    assert [entry.name for entry in tmp_path.iterdir()] == ["results"]
    assert len(run.run_id) < 120
    assert run.run_id.isascii()
    assert open_run(results, run.run_id).manifest()["name"] == name


def test_safe_name_reads_like_the_original():
    assert safe_name("google/gemma-2-9b-it") == "google-gemma-2-9b-it"
    assert safe_name("../../x") == "x"
    assert safe_name("čeština") == "cestina"
    assert safe_name("专家 ě/../x") == "e-x"


def test_r12_name_survives_an_ascii_locale(tmp_path):
    code = (
        "import sys\n"
        "from workbench.store.run_folder import create_run, list_runs\n"
        "run = create_run(sys.argv[1], name=sys.argv[2], manifest={'text': sys.argv[2]})\n"
        "from workbench.store.progress import append_event\n"
        "append_event(run.progress_path, {'event': 'note', 'text': sys.argv[2]})\n"
        "from tests.sample_run import make_cell, measured_outcome\n"
        "from workbench.store.writer import Writer\n"
        "with Writer(run) as writer: writer.add(measured_outcome(make_cell(), flags=sys.argv[2]))\n"
        "assert list_runs(sys.argv[1])[0].name == '\\u4e13\\u5bb6 \\u011b'\n"
    )
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, tmp_path, "专家 ě"], env=env, cwd=root, check=True, timeout=120)
    run = open_run(tmp_path, "latest")
    assert run.manifest()["name"] == "专家 ě"
    assert run.manifest()["text"] == "专家 ě"
    assert read_events(run.progress_path)[0][0]["text"] == "专家 ě"
    assert read_table(run, "cells").frame["flags"].tolist() == ["专家 ě"]


def test_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ValueError, match=r"cannot be written .* --results DIR"):
        create_run(blocker / "results", name="x", manifest={})


def test_open_run_by_id_part_name_path_and_latest(tmp_path):
    first = create_run(tmp_path, name="alpha", manifest={})
    second = create_run(tmp_path, name="beta", manifest={})
    latest = max(first.run_id, second.run_id)
    assert open_run(tmp_path, "latest").run_id == latest
    assert open_run(tmp_path, first.run_id) == first
    assert open_run(tmp_path, first.run_id[-6:]) == first
    assert open_run(tmp_path, "beta") == second
    assert open_run("elsewhere", str(second.path)).run_id == second.run_id


def test_open_run_by_a_unique_part_after_whole_names(tmp_path):
    large, plain = (create_run(tmp_path, name=name, manifest={}) for name in ("gpt-oss-120b", "oss"))
    assert open_run(tmp_path, "gpt-oss") == large
    assert open_run(tmp_path, "oss") == plain
    with pytest.raises(ValueError, match="2 runs match 'ss-'"):
        open_run(tmp_path, "ss-")
    with pytest.raises(ValueError, match="no run 'zz'"):
        open_run(tmp_path, "zz")


def test_a_file_is_no_results_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for look in (list_runs, lambda path: open_run(path, "latest")):
        with pytest.raises(ValueError, match="is not a folder"):
            look(tmp_path / "file")
    assert list_runs(tmp_path / "missing") == []


def test_open_run_names_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="holds no runs yet"):
        open_run(tmp_path, "latest")
    run = create_run(tmp_path, name="quickstart", manifest={})
    with pytest.raises(ValueError, match=rf"no run 'quikstart'.*{run.run_id}"):
        open_run(tmp_path, "quikstart")
    create_run(tmp_path, name="quickstart", manifest={})
    with pytest.raises(ValueError, match="2 runs match 'quickstart'"):
        open_run(tmp_path, "quickstart")


def test_list_runs_tells_finished_running_and_killed_apart(tmp_path):
    run = write_sample_run(tmp_path)
    (info,) = list_runs(tmp_path)
    assert (info.status, info.name, info.total) == ("finished", "sample", 47)
    assert info.counts == {"ok": 44, "unsupported": 1, "infeasible": 1, "error": 1}
    append_event(run.progress_path, {"event": "run_start", "total": 47})
    assert list_runs(tmp_path)[0].status == "unfinished"
    with Writer(run):
        assert list_runs(tmp_path)[0].status == "running"
        with pytest.raises(ValueError, match="still being written by another process"):
            Writer(run)
