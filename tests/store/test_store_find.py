"""Finding runs, pruning them, and a quick look for damage."""

import pytest

from tests.sample_run import make_cell, measured_outcome, write_sample_run
from workbench.cli.main import main
from workbench.store.damage import store_problems
from workbench.store.find import find_runs
from workbench.store.prune import remove_runs, runs_beyond
from workbench.store.run_folder import create_run, list_runs
from workbench.store.writer import Writer


def write(folder, name, **cell):
    run = create_run(folder, name=name, manifest={})
    with Writer(run) as writer:
        writer.add(measured_outcome(make_cell(**cell), samples=6))
    return run.run_id


@pytest.fixture
def runs(tmp_path):
    settings = {"old": {"precision": "bf16"}, "Nightly": {"precision": "fp8_block"}, "nightly 2": {"tokens": 5}}
    return tmp_path, {name: write(tmp_path, name, **cell) for name, cell in settings.items()}


def ids(infos):
    return {info.run_id for info in infos}


def test_filters_of_runs(runs):
    folder, made = runs
    assert ids(find_runs(folder, name="nightly")) == {made["Nightly"], made["nightly 2"]}
    assert ids(find_runs(folder, where=["precision=bf16,fp4"])) == {made["old"], made["nightly 2"]}
    assert ids(find_runs(folder, where=["precision=bf16", "tokens_per_rank=5"])) == {made["nightly 2"]}
    assert find_runs(folder, where=["precision=none"]) == []
    assert find_runs(folder, status="running") == []
    assert len(find_runs(folder, since="2026-01-01", limit=2)) == 2
    assert find_runs(folder, since="2999-01-01T00:00") == []


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"where": ["precision"]}, "--where precision: write COLUMN=VALUE"),
        ({"where": ["precison=bf16"]}, "nearest: precision"),
        ({"since": "yesterday"}, "--since yesterday: write a date"),
        ({"limit": 0}, "--limit 0"),
    ],
)
def test_filters_that_cannot_be(runs, filters, message):
    with pytest.raises(ValueError, match=message):
        find_runs(runs[0], **filters)


def test_prune_keeps_the_newest_of_each_name_and_what_is_written(runs):
    folder, made = runs
    more = [write(folder, "old") for _ in range(3)]
    assert len(runs_beyond(folder, keep=1)) == 3
    assert runs_beyond(folder, keep=1, name="Nightly") == []
    oldest = next(info for info in list_runs(folder) if info.name == "old")
    with Writer(open_folder := create_run(folder, name="live", manifest={})):
        beyond = runs_beyond(folder, keep=0)
        assert open_folder.run_id not in ids(beyond)
        assert len(remove_runs(beyond)) == 6
    assert ids(list_runs(folder)) == {open_folder.run_id}
    assert oldest.run_id in {made["old"], *more}
    assert [path.name for path in folder.iterdir()] == [open_folder.run_id]
    with pytest.raises(ValueError, match="--keep -1"):
        runs_beyond(folder, keep=-1)


def test_damage_is_named_by_the_list_of_runs(tmp_path, capsys):
    run = write_sample_run(tmp_path)
    broken = write_sample_run(tmp_path, name="broken")
    assert store_problems(tmp_path) == []
    (part,) = (run.path / "samples").iterdir()
    part.write_bytes(part.read_bytes()[:100])
    (run.path / "cells" / "part-000042.parquet").touch()
    (run.path / "loads" / "readme").touch()
    (broken.path / "manifest.json").write_text("{")
    broken.progress_path.write_bytes(broken.progress_path.read_bytes()[:-3])
    (tmp_path / "notes.txt").touch()
    names = {problem.rpartition("/")[2] for problem in store_problems(tmp_path)}
    assert names == {
        "notes.txt: no run", f"{part.name}: cut", "part-000042.parquet: empty", "readme: foreign",
        "manifest.json: unreadable", "progress.jsonl: torn at its end",
    }  # fmt: skip
    assert main(["runs", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("passed over: ") == 6
    assert "44 ok" in printed


def test_a_store_within_a_store_is_no_foreign_folder(tmp_path):
    write_sample_run(tmp_path / "reference")
    (tmp_path / "validation.parquet").touch()
    (tmp_path / "other").mkdir()
    assert store_problems(tmp_path) == ["other: no run"]
