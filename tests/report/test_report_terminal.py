"""Tables in a terminal: every row can be told from the others at any width, and notes stand below."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.sample_run import H200, make_cell, measured_outcome, sample_outcomes, simulated_outcome
from workbench.analysis.best import best_cells
from workbench.analysis.compare import compare_by
from workbench.report.notes import FLAG_WORDS, cell_notes, flag_texts, number
from workbench.report.summary import summarise
from workbench.report.terminal import print_table
from workbench.report.verdicts import print_verdicts
from workbench.spec.base import parse_size, size_text
from workbench.store.reader import read_table
from workbench.store.run_folder import create_run
from workbench.store.writer import Writer


def stored(tmp_path, outcomes):
    run = create_run(tmp_path, name="terminal", manifest={})
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    return read_table(run, "cells").frame, read_table(run, "samples").frame


def printed(show, frame, *, width):
    console = Console(file=io.StringIO(), width=width)
    show(console, frame)
    return console.file.getvalue()


def priced(cell, **fields):
    outcome = simulated_outcome(cell, base_us=100.0)
    return replace(outcome, record=replace(outcome.record, **fields))


def h200(**more):
    return make_cell(engine="simulate", model="deepseek-v3", hardware=H200, gpus_per_node=8, **more)


def rows_of(text):
    """Rows of the tables as one text each: lines up to a figure column, joined while they continue a label."""
    lines = [line for line in text.splitlines() if line.startswith(" ") and line.strip()]
    rows = []
    for line in lines:
        if " us" in line or " ms" in line or "  -  " in line:
            rows.append(line)
        elif rows:
            rows[-1] += line
    return [" ".join(row.split()) for row in rows]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_every_row_is_whole_and_its_own_at_any_width(tmp_path, width):
    cells, samples = stored(tmp_path, sample_outcomes())
    text = printed(print_table, cells, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert len(set(rows_of(text))) == len(rows_of(text)) == len(cells)
    flat = " ".join(text.split())
    for word in ("power_law(1.01)", "mxfp4_w4a16", "node_dedup", "gpt-oss-tiny", "unsupported (1)", "infeasible (2)"):
        assert word in flat, word
    verdicts = printed(print_verdicts, compare_by(cells, samples, by="precision"), width=width)
    assert max(map(len, verdicts.splitlines())) <= width
    assert (verdicts.count("faster"), verdicts.count("unclear")) >= (6, 24)


def test_reasons_stand_below_the_table_once(tmp_path):
    cells, _ = stored(tmp_path, sample_outcomes())
    text = printed(print_table, cells, width=80)
    assert text.count("strategy bruck is not built yet") == 1
    assert "(1) unsupported: strategy bruck is not built yet" in text
    assert "(1) error: rank 2 died: signal 9" in text


def test_flags_are_said_in_words(tmp_path):
    flagged = priced(h200(tokens=1), flags="above_peak,sampled_tokens=32")
    cells, samples = stored(
        tmp_path, [flagged, priced(h200(tokens=2), flags="sampled_tokens=16"), priced(h200(tokens=4))]
    )
    text = printed(print_table, cells, width=100)
    assert f"(1) {FLAG_WORDS['above_peak']}" in text
    assert text.count("ok (1)") == 1
    assert "2 of 3 rows: routing was drawn for part of the tokens" in text
    (everything,) = (finding for finding in summarise(cells, samples) if finding.head == "All cells")
    assert f"1 of 3 cells: {FLAG_WORDS['above_peak']}." in everything.sentences
    assert flag_texts("virtual_nodes,ranks=0+3,unheard_of=1") == [
        FLAG_WORDS["virtual_nodes"],
        "measured on rank 0+3 of the group alone",
        "unheard_of=1",
    ]


def test_what_all_rows_say_needs_no_mark(tmp_path):
    cells, _ = stored(tmp_path, [priced(h200(tokens=n), flags="virtual_nodes") for n in (1, 2)])
    notes = cell_notes(cells)
    assert notes.marks == ("", "")
    assert notes.general == (f"every row: {FLAG_WORDS['virtual_nodes']}",)
    assert number([["a", "b"], ["b"], ["b", "a"]]).marks == ("(1)", "", "(1)")
    assert number([]).marks == ()


def test_cells_that_differ_in_a_field_without_a_column_are_told_apart(tmp_path):
    """``matrix`` may vary any path, also one that is no column of ``cells``."""
    cell = h200()
    deep = [
        cell.model_copy(update={"cell_id": f"a{n}", "workload": cell.workload.model_copy(update={"context_tokens": n})})
        for n in (1024, 4096)
    ]
    other = cell.model_copy(update={"cell_id": "b", "group": "again"})
    cells, _ = stored(tmp_path, [priced(one) for one in (*deep, other)])
    text = printed(print_table, cells, width=100)
    assert "context_tokens" in text
    assert "1024" in text
    assert "4096" in text


def test_cells_alike_in_all_but_the_group_are_told_by_it(tmp_path):
    cells, _ = stored(tmp_path, [priced(h200(group=group).model_copy(update={"cell_id": group})) for group in "xy"])
    assert len(set(rows_of(printed(print_table, cells, width=100)))) == 2


def test_sizes_are_written_as_in_a_scenario():
    assert [size_text(size) for size in (0, 1500, 2**16, 64 * 2**20, 3 * 2**40)] == [
        "0B", "1500B", "64KiB", "64MiB", "3TiB",
    ]  # fmt: skip
    assert all(parse_size(size_text(size)) == size for size in (1, 1500, 4096, 10**9, 2**31))


def test_summary_counts_in_how_many_settings_one_is_fastest(tmp_path):
    """The median ratio alone would crown fp8_block, which wins one setting by a little and loses two by much."""
    times = {"bf16": (100, 100, 100), "fp8_block": (80, 80, 80), "mxfp4_w4a16": (40, 40, 90)}
    outcomes = [
        simulated_outcome(h200(precision=precision, tokens=tokens), base_us=us)
        for precision, each in times.items()
        for tokens, us in zip((1, 2, 4), each, strict=True)
    ]
    cells, samples = stored(tmp_path, outcomes)
    lines = [line for finding in summarise(cells, samples) for line in finding.sentences]
    (line,) = (line for line in lines if line.startswith("precision"))
    assert line.startswith("precision: fastest of 3 settings: mxfp4_w4a16 in 2, fp8_block in 1; ")


def test_summary_has_no_winner_where_two_are_too_close(tmp_path):
    outcomes = [simulated_outcome(h200(precision="bf16"), base_us=100.0)]
    outcomes += [
        simulated_outcome(h200(precision=name), base_us=us) for name, us in (("fp8_block", 50.0), ("mxfp4_w4a16", 50.5))
    ]
    cells, samples = stored(tmp_path, outcomes)
    lines = [line for finding in summarise(cells, samples) for line in finding.sentences]
    assert any(line.startswith("precision: no clear winner; fp8_block takes 0.50x") for line in lines)


def test_measured_rows_keep_error_and_interval_in_eighty_columns(tmp_path):
    cells, _ = stored(tmp_path, [measured_outcome(make_cell(precision=name)) for name in ("bf16", "fp8_block")])
    text = printed(print_table, cells, width=80)
    assert "latency (95% interval)" in text
    assert "rel error" in text


def test_the_best_of_a_setting_is_marked_where_the_figures_are_apart(tmp_path):
    cells = [h200(precision=precision, tokens=tokens) for tokens in (1, 2) for precision in ("bf16", "fp8_block")]
    times = (100.0, 60.0, 100.0, 99.0)
    frame, samples = stored(
        tmp_path, [simulated_outcome(cell, base_us=us) for cell, us in zip(cells, times, strict=True)]
    )
    assert best_cells(frame).tolist() == [False, True, False, False]
    text = printed(print_table, frame, width=100)
    assert "60 us *" in text
    assert text.count(" *") == 1
    assert "* fastest of its setting" in text
    wide = frame.assign(band_low_us=frame["latency_us"] * 0.7, band_high_us=frame["latency_us"] * 1.3)
    assert not best_cells(wide).any()
    three = [h200(precision=precision) for precision in ("bf16", "fp8_block", "nvfp4_w4a16")]
    times = (100.0, 60.0, 50.0)
    frame, samples = stored(
        tmp_path, [simulated_outcome(cell, base_us=us) for cell, us in zip(three, times, strict=True)]
    )
    text = printed(print_verdicts, compare_by(frame, samples, by="precision"), width=100)
    assert text.count("faster *") == 1
    assert "* the fastest of those" in text


def test_on_a_cpu_no_precision_is_the_best_and_no_small_lead_counts(tmp_path):
    cells = [make_cell(precision=p, strategy=s) for p in ("bf16", "fp8_block") for s in ("flat", "node_dedup")]
    times = (1000.0, 700.0, 300.0, 100.0)
    frame, _ = stored(tmp_path, [measured_outcome(c, base_us=us) for c, us in zip(cells, times, strict=True)])
    assert best_cells(frame).tolist() == [False, False, False, True]
