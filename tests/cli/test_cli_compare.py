"""The regression watch, repeats and merging, through main()."""

import json

import pytest
from rich.console import Console

from tests.sample_run import H200, make_cell, measured_outcome, simulated_outcome
from workbench.cli.main import main
from workbench.cli.repeats import run_repeats
from workbench.orchestrate.execute import RunSummary
from workbench.run.describe import failed
from workbench.store.reader import read_table
from workbench.store.run_folder import create_run, list_runs, open_run
from workbench.store.writer import Writer

CELLS = [make_cell(hardware=H200, tokens=tokens) for tokens in range(1, 11)]


def write(folder, *, seed, slower=1.0, name="suite", broken=()):
    run = create_run(folder, name=name, manifest={})
    with Writer(run) as writer:
        for number, cell in enumerate(CELLS):
            if number in broken:
                writer.add(failed(cell, "rank 0 died"))
            else:
                us = 1000.0 * (slower if number < 3 else 1.0)
                writer.add(measured_outcome(cell, base_us=us, noise=0.004, samples=12, seed=seed))
    return run.run_id


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs of one suite by name: three as they were, three with three cells slower by 8%, one with a broken cell."""
    folder = tmp_path_factory.mktemp("results")
    runs = {"old": [write(folder, seed=seed) for seed in range(3)]}
    runs["same"] = [write(folder, seed=seed) for seed in range(3, 6)]
    runs["slow"] = [write(folder, seed=seed, slower=1.08) for seed in range(6, 9)]
    runs["broken"] = [write(folder, seed=seed, broken=(5,)) for seed in (9, 10)]
    return folder, {name: ",".join(ids) for name, ids in runs.items()}


@pytest.fixture
def compare(results, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    folder, sides = results

    def call(candidate, *arguments):
        status = main(["compare", sides[candidate], "--against", sides["old"], *arguments, "--results", str(folder)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_a_regression_fails_with_status_1(compare):
    status, out, _ = compare("slow", "--fail-if", "slower:5%")
    assert status == 1
    assert "3 cells slower by 5.0% or more; 10 of 10 could be judged" in out
    assert "noise floor on cuda" in out
    assert compare("slow")[0] == 0
    assert compare("slow", "--fail-if", "slower:20%")[0] == 0
    status, out, _ = compare("slow", "--fail-if", "slower", "--format", "json")
    answer = json.loads(out)
    assert (status, sum(row["verdict"] == "slower" for row in answer["cells"])) == (1, 3)


def test_no_regression_is_status_0(compare):
    status, out, _ = compare("same", "--fail-if", "slower:5%")
    assert (status, "no cell slower by 5.0% or more; 10 of 10 could be judged" in out) == (0, True)


def test_a_cell_that_now_ends_in_error_is_a_regression(compare):
    status, out, _ = compare("broken", "--fail-if", "slower:5%")
    assert (status, "1 cell error or slower" in out) == (1, True)


def test_a_watch_that_can_see_nothing_is_refused(results, compare, capsys):
    folder, sides = results
    old, slow = sides["old"].split(",")[0], sides["slow"].split(",")[0]
    status = main(["compare", slow, "--against", old, "--fail-if", "slower:5%", "--results", str(folder)])
    assert status == 2
    assert "no cell could be judged (1 repeat a side, 2 are needed" in capsys.readouterr().err


def test_a_noise_floor_raises_what_counts(compare, tmp_path):
    rough = [create_run(tmp_path, name="rough", manifest={}) for _ in range(2)]
    for run, us in zip(rough, (1000.0, 1100.0), strict=True):
        with Writer(run) as writer:
            writer.add(measured_outcome(CELLS[0], base_us=us, noise=0.001))
    noise = ",".join(str(run.path) for run in rough)
    status, out, _ = compare("slow", "--fail-if", "slower:5%", "--noise", noise)
    assert (status, "differ by up to 10.0%" in out) == (0, True)
    status, _, err = compare("slow", "--noise", str(rough[0].path))
    assert (status, "no cell was measured twice" in err) == (2, True)


def test_merge_makes_repeats_of_runs(results, tmp_path, capsys):
    folder, sides = results
    paths = [str(folder / run) for run in sides["old"].split(",")]
    assert main(["merge", *paths, "--name", "nightly", "--results", str(tmp_path)]) == 0
    assert "3 repeats of a cell" in capsys.readouterr().out
    assert main(["compare", "nightly", "--by", "workload.tokens_per_rank", "--results", str(tmp_path)]) == 0
    assert "same" in capsys.readouterr().out


def test_repeats_of_a_run_become_one_run(tmp_path):
    priced = make_cell(engine="simulate")
    asked = []

    def run_once(cells, status="finished"):
        asked.append(len(cells))
        run = create_run(tmp_path, name="tiny", manifest={})
        with Writer(run) as writer:
            for cell in cells:
                told = measured_outcome(cell, seed=len(asked)) if cell.engine == "measure" else None
                writer.add(told or simulated_outcome(cell, base_us=3.0))
        return RunSummary(run_id=run.run_id, path=run.path, counts={}, exit_status=0, status=status)

    quiet = Console(quiet=True)
    summary = run_repeats([CELLS[0], priced], 3, run_once, talk=quiet)
    assert asked == [2, 1, 1]
    assert summary.counts == {"ok": 2}
    assert [info.run_id for info in list_runs(tmp_path)] == [summary.run_id]
    assert len(list((summary.path / "repeats").iterdir())) == 3
    assert set(read_table(open_run(tmp_path, "latest"), "samples").frame["repeat"]) == {0, 1, 2}
    run_repeats([CELLS[0]], 3, lambda cells: run_once(cells, status="stopped"), talk=quiet)
    assert len(list_runs(tmp_path)) == 2
    with pytest.raises(ValueError, match="--repeats 0: give a number from 1"):
        run_repeats([CELLS[0]], 0, run_once, talk=quiet)


@pytest.mark.parametrize("other", [["--detach"], ["--resume", "latest"]])
def test_repeats_go_with_neither_detach_nor_resume(other, tmp_path, capsys):
    assert main(["run", "quickstart", "--repeats", "2", *other, "--results", str(tmp_path)]) == 2
    assert "--repeats: goes neither with --detach nor with --resume" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
