"""The report file and its sentences."""

import re
from dataclasses import replace

import pytest

from tests.sample_run import make_cell, measured_outcome, sample_outcomes, simulated_outcome, write_sample_run
from workbench.cli.main import main
from workbench.report.html import flat_items, report_html, write_report
from workbench.report.summary import summarise
from workbench.store.parts import part_path
from workbench.store.reader import read_table
from workbench.store.run_folder import create_run, open_run
from workbench.store.writer import Writer

NASTY = "</script><script>alert(1)</script><b>name"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html")
    write_sample_run(folder)
    return folder


def stored(tmp_path, outcomes):
    run = create_run(tmp_path, name="html", manifest={})
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    return run


def sentences(run):
    found = summarise(read_table(run, "cells").frame, read_table(run, "samples").frame)
    return {finding.head: list(finding.sentences) for finding in found}


def test_report_is_one_file_that_fetches_nothing(results, tmp_path, capsys):
    target = tmp_path / "deep" / "report.html"
    assert main(["report", "latest", "-o", str(target), "--results", str(results)]) == 0
    assert str(target) in capsys.readouterr().out.replace("\n", "")
    document = target.read_text(encoding="utf-8")
    assert [entry.name for entry in target.parent.iterdir()] == ["report.html"]
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", document)
    assert document.count("plotly.js v") == 1
    assert document.count('class="plotly-graph-div"') == 9
    assert document.index("In short") < document.index("figure-speedup") < document.index("Every cell")
    for text in ("test processor", "0123abc", "moe-workbench run sample", "strategy bruck is not built yet", "seeds"):
        assert text in document


def test_report_goes_into_the_runs_folder_by_default(results):
    assert main(["report", "--results", str(results)]) == 0
    assert (open_run(results, "latest").path / "report.html").stat().st_size > 10**6


def test_report_refuses_a_place_it_cannot_write(results, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["report", "latest", "-o", str(tmp_path / "file" / "x.html"), "--results", str(results)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_texts_of_files_never_become_markup(tmp_path):
    run = create_run(tmp_path, name=NASTY, manifest={"scenario_text": NASTY, NASTY: NASTY})
    with Writer(run) as writer:
        for precision in ("bf16", "fp8_block"):
            outcome = measured_outcome(make_cell(model=NASTY, precision=precision))
            writer.add(replace(outcome, record=replace(outcome.record, skew=f"{NASTY}{precision}", hardware=NASTY)))
    document = report_html(run)
    assert "alert(1)" in document
    assert "<script>alert" not in document
    assert "<b>name" not in document


def test_report_of_an_empty_run_says_so(tmp_path):
    run = create_run(tmp_path, name="empty", manifest={})
    target = tmp_path / "report.html"
    write_report(run, target)
    assert "No cell has finished yet." in target.read_text(encoding="utf-8")


def test_report_names_damaged_files(tmp_path):
    run = stored(tmp_path, list(sample_outcomes())[:2])
    part_path(run.path, "samples", 7).write_bytes(b"")
    assert "samples/part-000007.parquet: unreadable, passed over" in report_html(run)


def test_summary_says_who_wins_by_how_much_and_how_sure(results):
    found = sentences(open_run(results, "latest"))
    simulated = found["simulated, for h200-sxm, method roofline, no error band established yet"]
    assert simulated[0] == (
        "precision: fp8_block is fastest; fp8_block takes 0.62x the time of bf16, faster in 6 of 6."
    )
    measured = found["measured, on cpu, median of 40 samples of the slowest rank"]
    assert measured[0].startswith("precision: no clear winner; nvfp4_w4a16 takes 1.22x the time of bf16")
    assert "unclear in 8 of 8" in measured[0]
    assert measured[-1] == "Times of this processor: they say nothing about how precisions rank on a GPU."
    everything = found["All cells"]
    assert everything[0] == "47 cells: 44 ok, 1 unsupported, 1 infeasible, 1 error."
    assert "1 unsupported: strategy bruck is not built yet." in everything


def test_summary_does_not_crown_anyone_within_the_noise(tmp_path):
    cells = [make_cell(precision=precision) for precision in ("bf16", "fp8_block")]
    found = sentences(stored(tmp_path, [measured_outcome(cell, noise=0.05) for cell in cells]))
    (lines,) = (lines for head, lines in found.items() if head.startswith("measured"))
    assert lines[0].startswith("precision: no clear winner; fp8_block takes")
    assert lines[0].endswith("unclear in 1 of 1.")


def test_summary_of_one_cell_compares_nothing(tmp_path):
    cell = make_cell(engine="simulate")
    found = sentences(stored(tmp_path, [simulated_outcome(cell, base_us=1.0, comm_fraction=0.25)]))
    assert list(found.values()) == [["communication: 25% of the layer."], ["1 cell: 1 ok."]]


def test_manifest_is_shown_flat():
    assert flat_items({"a": {"b": 1, "c": [1, None]}, "d": "x"}) == [("a.b", "1"), ("a.c", "[1, null]"), ("d", "x")]


def test_loads_have_their_figures_with_definitions_beside_them(results):
    text = report_html(open_run(results, "latest"))
    section = text[text.index("How even the loads were") :]
    assert "<td>expert</td>" in section
    assert "<li>MaxVio = (max(n) - mean(n)) / mean(n); 0 when even" in section
    assert "<li>rank: (token, expert) pairs that each rank computes" in section
