"""`run` and `stop` as a user calls them: processes, signals, exit status, and what stays in the folder."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from workbench.cli.main import main
from workbench.store.progress import read_events

ROOT = Path(__file__).resolve().parents[2]
MEASURED = """
name: measured
scope: {kind: all_to_all, bytes_per_rank: 4KiB}
cluster: {hardware: cpu, nodes: 1, gpus_per_node: 2}
parallel: {ep: 2}
engine: measure
measure: {warmup: 1, min_samples: 100000, max_seconds: 1.0}
matrix: {workload.seed: [0, 1, 2, 3, 4]}
"""
PRICED = """
name: priced
model: deepseek-v3
cluster: {hardware: h200-sxm, nodes: 1, gpus_per_node: 8}
workload: {tokens_per_rank: 4}
engine: simulate
matrix: {precision: [bf16, fp8_block]}
"""
WAIT_S = 120


@pytest.fixture
def scenario(tmp_path):
    """``scenario(text)``: the path of a scenario file."""

    def write(text):
        path = tmp_path / "scenario.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def launch(tmp_path):
    """``launch(*arguments)``: the command as a process in a group of its own, with ``tmp_path/results``."""
    started = []

    def start(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench.cli.main", *arguments, "--results", str(tmp_path / "results")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _finish(process):
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def _run_folder(tmp_path):
    (folder,) = (tmp_path / "results").iterdir()
    return folder


def _wait_for_cells(tmp_path, number):
    """Wait until the run has finished ``number`` cells, and return its folder."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for path in (tmp_path / "results").glob("*/progress.jsonl"):
            if sum(event["event"] == "cell" for event in read_events(path)[0]) >= number:
                return path.parent
        time.sleep(0.1)
    raise TimeoutError("the run did not get that far")


def _events(folder, kind):
    return [event for event in read_events(folder / "progress.jsonl")[0] if event["event"] == kind]


def test_a_killed_driver_loses_the_cell_in_flight_and_resume_finishes(scenario, launch, tmp_path):
    driver = launch("run", scenario(MEASURED), RAY_ADDRESS="127.0.0.1:1")
    folder = _wait_for_cells(tmp_path, 2)
    ranks = [
        child for child in psutil.Process(driver.pid).children(recursive=True) if "RankActor" in _command_line(child)
    ]
    assert len(ranks) == 2
    time.sleep(0.5)
    driver.kill()
    driver.wait()
    before = {event["cell_id"] for event in _events(folder, "cell")}
    assert _gone(ranks, within_s=20)
    status, out, err = _finish(launch("run", "--resume", folder.name, "--format", "json"))
    assert status == 0, err
    answer = json.loads(out)
    assert answer["counts"]["ok"] == 5
    assert len(answer["cells"]) == 5
    redone = [event["cell_id"] for event in _events(folder, "cell")][len(before) :]
    assert len(redone) == len(set(redone))
    assert len(before & set(redone)) <= 1


def _command_line(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _gone(processes, *, within_s):
    deadline = time.monotonic() + within_s
    while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_ctrl_c_keeps_what_is_done_and_says_how_to_resume(scenario, launch, tmp_path):
    driver = launch("run", scenario(MEASURED))
    folder = _wait_for_cells(tmp_path, 1)
    os.killpg(driver.pid, signal.SIGINT)  # a terminal sends it to the whole group, Ray's processes too
    asked = time.monotonic()
    status, out, err = _finish(driver)
    assert time.monotonic() - asked < 30
    assert status == 0, err
    assert "Traceback" not in err
    assert "stopped by Ctrl-C" in err
    assert f"moe-workbench run --resume {folder.name} --results {tmp_path / 'results'}" in err
    assert f"run {folder.name}" in out
    assert _events(folder, "run_end")[-1]["status"] == "stopped"
    assert 1 <= len(_events(folder, "cell")) < 5


def test_stop_ends_a_detached_run(scenario, launch, tmp_path):
    status, out, err = _finish(launch("run", scenario(MEASURED), "--detach"))
    assert status == 0, err
    folder = _run_folder(tmp_path)
    assert out.strip() == folder.name
    _wait_for_cells(tmp_path, 1)
    status, out, err = _finish(launch("stop", folder.name))
    assert status == 0, err
    assert f"stopped run {folder.name}" in out
    assert f"--resume {folder.name}" in out
    assert _events(folder, "run_end")[-1]["status"] == "stopped"
    status, out, _ = _finish(launch("stop", folder.name))
    assert (status, "is not running (stopped)" in out) == (0, True)


@pytest.mark.parametrize("scenarios", ["one", "several"])
def test_r14_results_folder_is_made_up_front_or_refused(scenario, tmp_path, capsys, scenarios):
    path = scenario(PRICED)
    arguments = ["run", path] if scenarios == "one" else ["run", path, path]
    nested = tmp_path / "not" / "yet" / "there"
    assert main([*arguments, "--results", str(nested)]) == 0
    (folder,) = nested.iterdir()
    assert (folder / "manifest.json").exists()
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    capsys.readouterr()
    assert main([*arguments, "--results", str(blocked / "results")]) == 2
    _, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert str(blocked / "results") in err
    assert "--results" in err
    assert "cells" not in err


def test_r14_read_only_folder_is_refused_before_any_run(scenario, tmp_path, capsys):
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.access(locked, os.W_OK):  # root: only a read-only mount stops it
        locked = Path("/proc/sys")
    assert main(["run", scenario(PRICED), "--results", str(locked)]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert str(locked) in err


def test_a_run_prints_its_table_and_where_things_are(scenario, tmp_path, capsys):
    assert main(["run", scenario(PRICED), "--results", str(tmp_path / "results")]) == 0
    out, err = capsys.readouterr()
    folder = _run_folder(tmp_path)
    assert "fp8_block" in out
    assert f"2 ok of run {folder.name}" in out
    assert f"results: {folder}" in out
    assert f"moe-workbench report {folder.name}" in out
    assert "2/2" in err


def test_format_json_is_one_strict_object(scenario, tmp_path, capsys):
    path = scenario(PRICED)
    assert main(["run", path, "--results", str(tmp_path / "results"), "--format", "json"]) == 0
    out, _ = capsys.readouterr()
    answer = json.loads(out, parse_constant=_refuse)
    assert [cell["status"] for cell in answer["cells"]] == ["ok", "ok"]
    assert answer["run_id"] == _run_folder(tmp_path).name


def _refuse(word):
    raise ValueError(f"{word} is not strict JSON")


def test_engine_and_set_lie_over_every_cell(scenario, tmp_path, capsys):
    text = PRICED.replace("engine: simulate", "engine: measure")
    arguments = ["run", scenario(text), "--engine", "simulate", "--set", "workload.tokens_per_rank=2"]
    assert main([*arguments, "--results", str(tmp_path / "results"), "--format", "json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {(cell["engine"], cell["tokens_per_rank"]) for cell in cells} == {("simulate", 2)}


@pytest.mark.parametrize("name", ["google/gemma-2-9b-it", "../../x", "a:b", "n" * 300])
def test_r10_a_run_of_any_name_lies_inside_the_results_folder(scenario, tmp_path, capsys, name):
    path = scenario(PRICED.replace("name: priced", f"name: '{name}'"))
    assert main(["run", path, "--results", str(tmp_path / "deep" / "results")]) == 0
    assert {entry.name for entry in tmp_path.iterdir()} == {"deep", "scenario.yaml"}
    (folder,) = (tmp_path / "deep" / "results").iterdir()
    capsys.readouterr()
    assert main(["show", "latest", "--results", str(tmp_path / "deep" / "results"), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["run"]["name"], answer["run"]["run_id"]) == (name, folder.name)
    assert {json.loads(cell["cell_json"])["scenario"] for cell in answer["cells"]} == {name}


def test_r12_a_name_beyond_ascii_is_run_and_shown_under_an_ascii_locale(tmp_path, launch):
    (tmp_path / "专家.yaml").write_text(PRICED.replace("name: priced", "name: 专家 ě"), encoding="utf-8")
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    status, _, err = _finish(launch("run", str(tmp_path / "专家.yaml"), **ascii_locale))
    assert status == 0, err
    status, out, err = _finish(launch("show", "latest", "--format", "json", **ascii_locale))
    assert status == 0, err
    assert json.loads(out)["run"]["name"] == "专家 ě"
    assert json.loads((_run_folder(tmp_path) / "manifest.json").read_text(encoding="utf-8"))["name"] == "专家 ě"


def test_more_than_ten_thousand_cells_need_a_yes(scenario, tmp_path, capsys):
    many = f"matrix: {{workload.seed: {list(range(10_001))}}}"
    text = PRICED.replace("matrix: {precision: [bf16, fp8_block]}", many)
    assert main(["run", scenario(text), "--results", str(tmp_path / "results")]) == 2
    assert "10,001 cells are more than 10,000" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "name a scenario file or a suite"),
        (["run", "quickstrat"], "quickstart"),
        (["run", "quickstart", "--set", "engine=fast"], "error: --set: engine: unknown value; known: hybrid, measure"),
        (["run", "--resume", "nothing"], "holds no runs yet"),
        (["stop", "nothing"], "holds no runs yet"),
        (["run", "quickstart", "--address", "127.0.0.1:1"], "nothing listens there"),
    ],
)
def test_what_cannot_be_is_refused_in_words(tmp_path, capsys, arguments, words):
    assert main([*arguments, "--results", str(tmp_path / "results")]) == 2
    _, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert words in err
    assert not (tmp_path / "results").exists()


def test_an_unknown_engine_names_its_option(capsys):
    assert main(["run", "quickstart", "--engine", "fast"]) == 2
    _, err = capsys.readouterr()
    assert "--engine" in err
    assert "simulate" in err
