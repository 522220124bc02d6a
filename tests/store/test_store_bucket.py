"""A store behind a URL: several machines write, each sees whole runs of all, and old ones are taken away."""

import fsspec
import pytest

from tests.sample_run import make_cell, measured_outcome
from workbench.cli.main import main
from workbench.store.bucket import place_of, results_path, send_run
from workbench.store.catalog import open_catalog
from workbench.store.progress import append_event
from workbench.store.query import count_cells
from workbench.store.reader import read_table, read_tables
from workbench.store.run_folder import create_run, list_runs, open_run
from workbench.store.writer import Writer

URL = "memory://team/results"


def write(folder, name="sample"):
    """A finished run of two cells."""
    run = create_run(folder, name=name, manifest={})
    append_event(run.progress_path, {"event": "run_start", "total": 2})
    with Writer(run) as writer:
        for tokens in (1, 2):
            cell = make_cell(tokens=tokens)
            writer.add(measured_outcome(cell, samples=6))
            append_event(run.progress_path, {"event": "cell", "cell_id": cell.cell_id, "status": "ok"})
    append_event(run.progress_path, {"event": "run_end", "status": "finished"})
    return run


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes this process another machine: each has a cache of its own, the bucket is one."""

    def be(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return results_path(URL)

    yield be
    fsspec.filesystem("memory").store.clear()


def test_runs_of_many_machines_meet_in_a_bucket(machine):
    here = machine("one")
    first = write(here, name="first")
    send_run(first.path)
    second = write(machine("two"), name="second")
    send_run(second.path)
    there = machine("three")
    told = sorted((info.name, info.status, info.counts["ok"]) for info in list_runs(there))
    assert told == [("first", "finished", 2), ("second", "finished", 2)]
    assert count_cells(open_catalog(there)) == 4
    mirrored = open_run(there, "first")
    assert not (mirrored.path / "samples").exists()
    assert len(read_table(mirrored, "samples").frame) == len(read_table(first, "samples").frame)
    assert (mirrored.path / "samples").exists()
    assert not (mirrored.path / "stages").exists()
    assert place_of(there) == URL


def test_nobody_sees_a_run_before_it_is_whole(machine, monkeypatch):
    run = write(machine("one"))
    memory = fsspec.filesystem("memory")
    sent = []
    real = type(memory).pipe_file

    def pipe_file(self, path, value, **options):
        sent.append((path.rpartition("/")[2], len(list_runs(results_path(URL)))))
        return real(self, path, value, **options)

    monkeypatch.setattr(type(memory), "pipe_file", pipe_file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.path.parent / "elsewhere"))
    send_run(run.path)
    assert sent[-1][0] == "manifest.json"
    assert {number for _, number in sent} == {0}
    assert len(list_runs(results_path(URL))) == 1


def test_a_run_goes_on_on_another_machine(machine):
    cell, later = make_cell(), make_cell(tokens=7)
    run = create_run(machine("one"), name="long", manifest={})
    with Writer(run) as writer:
        writer.add(measured_outcome(cell))
    send_run(run.path)
    there = open_run(machine("two"), "long")
    with Writer(there) as writer:
        assert writer.finished_ids() == {cell.cell_id}
        writer.add(measured_outcome(later))
    send_run(there.path)
    back = open_run(machine("one"), "long")
    for table in ("cells", "samples"):
        assert set(read_table(back, table).frame["cell_id"]) == {cell.cell_id, later.cell_id}
    assert not any(result.bad_files for result in read_tables(back).values())


def test_prune_takes_runs_away_everywhere(machine, capsys):
    for _ in range(3):
        send_run(write(machine("one"), name="nightly").path)
    unsent = write(machine("two"), name="mine")
    newest = [info.run_id for info in list_runs(machine("two")) if info.name == "nightly"][-1]
    assert main(["prune", "--keep", "1", "--results", URL]) == 0
    assert "2 runs; say --yes to delete" in capsys.readouterr().out
    assert len(list_runs(machine("two"))) == 4
    assert main(["prune", "--keep", "1", "--yes", "--results", URL]) == 0
    assert capsys.readouterr().out.count("deleted ") == 2
    assert [info.run_id for info in list_runs(machine("one"))] == [newest]
    assert unsent.run_id in [info.run_id for info in list_runs(machine("two"))]


def test_commands_take_a_url(machine, capsys, tmp_path):
    send_run(write(machine("one")).path)
    machine("two")
    assert main(["show", "latest", "--format", "json", "--results", URL]) == 0
    assert main(["merge", "latest", "latest", "--results", URL]) == 2
    assert main(["runs", "--results", "nowhere://x"]) == 2
    assert "--results nowhere://x" in capsys.readouterr().err
    write(tmp_path / "local")
    assert main(["runs", "--results", f"file://{tmp_path}/local"]) == 0
    assert "2 ok" in capsys.readouterr().out
