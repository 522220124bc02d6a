"""Runs through a log and back."""

import pytest

from tests.sample_run import write_sample_run
from workbench.store.bundle import MARK, bundle_lines, unbundle
from workbench.store.reader import read_table
from workbench.store.run_folder import open_run


@pytest.fixture
def sent(tmp_path):
    write_sample_run(tmp_path / "there")
    return list(bundle_lines(tmp_path / "there"))


def test_runs_come_back_as_they_were(tmp_path, sent):
    assert all(line.startswith(MARK) and "\n" not in line for line in sent)
    (run,) = unbundle(sent, tmp_path / "here")
    before = read_table(open_run(tmp_path / "there", "latest"), "cells").frame
    after = read_table(open_run(tmp_path / "here", run.name), "cells").frame
    assert after.equals(before)


def test_a_cut_or_damaged_bundle_is_refused_and_leaves_nothing(tmp_path, sent):
    for lines, message in (
        (sent[:-1], "the log was cut"),
        (sent[1:], "damaged"),
        ([sent[0][:-8], *sent[1:]], "damaged"),
        ([sent[0].replace("A", "*", 1), *sent[1:]], "damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            unbundle(lines, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_run_that_is_here_already_is_not_overwritten(tmp_path, sent):
    unbundle(sent, tmp_path / "here")
    with pytest.raises(ValueError, match="is there already"):
        unbundle(sent, tmp_path / "here")


def test_a_bundle_writes_nowhere_else(tmp_path):
    evil = tmp_path / "there" / "run"
    evil.mkdir(parents=True)
    (evil / "link").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="what no run holds"):
        unbundle(bundle_lines(tmp_path / "there"), tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())
