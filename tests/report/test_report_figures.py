"""Figures: what shares an axis, what a title says, and what is shown when there is nothing."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.sample_run import CPU, H200, make_cell, measured_outcome, simulated_outcome, write_sample_run
from workbench.report.conditions import condition_groups
from workbench.report.figures import FIGURES
from workbench.report.figures.error_latency import pareto_mask
from workbench.report.figures.links import link_class, sent_bytes
from workbench.report.figures.memory import fullest_rank
from workbench.report.figures.panels import MAX_ROWS, panels
from workbench.report.figures.stages import slowest_rank
from workbench.report.labels import cell_labels, silent_columns
from workbench.report.units import bytes_text, interval_text, number_text, time_text
from workbench.run.describe import base_record_fields
from workbench.spec.dispatch import Dispatch, Placement
from workbench.spec.record import Outcome, Record
from workbench.spec.scenario import AllToAllScope
from workbench.store.reader import read_tables
from workbench.store.run_folder import create_run
from workbench.store.writer import Writer

TIMED = ("speedup", "latency", "error_latency", "stages")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    run = write_sample_run(tmp_path_factory.mktemp("figures"))
    return {name: result.frame for name, result in read_tables(run).items()}


def stored(tmp_path, outcomes):
    run = create_run(tmp_path, name="figures", manifest={})
    with Writer(run) as writer:
        for outcome in outcomes:
            writer.add(outcome)
    return {name: result.frame for name, result in read_tables(run).items()}


def heads(figure):
    return [note.text for note in figure.layout.annotations if "<b>" in note.text]


def axis_rows(figure, axis):
    return {y for trace in figure.data if (trace.yaxis or "y") == axis for y in trace.y}


ELSEWHERE = ("message_size", "roofline", "balancers", "imbalance", "comparison", "validation")
"""Figures of what the sample run has not."""


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in ELSEWHERE])
def test_figure_draws_and_is_plain_json(tables, name):
    figure = FIGURES[name].build(tables["cells"], tables)
    drawn = [trace for trace in figure.data if trace.x is not None and len(trace.x)]
    assert drawn
    assert figure.layout.height > 100
    json.loads(figure.to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("name", TIMED)
def test_cpu_and_gpu_never_share_an_axis(tables, name):
    figure = FIGURES[name].build(tables["cells"], tables)
    titles = heads(figure)
    measured = [title for title in titles if "measured, on cpu, median of 40 samples of the slowest rank" in title]
    assert len(measured) == 1
    assert "say nothing about how precisions rank on a GPU" in measured[0]
    if name == "error_latency":
        assert len(titles) == 1
        return
    assert any("simulated, for h200-sxm, method roofline, no error band established yet" in title for title in titles)
    first, second = axis_rows(figure, "y"), axis_rows(figure, "y2")
    assert first
    assert second
    assert not first & second
    assert all("tiny" in str(row) for row in first)


def test_measured_gpu_and_cpu_of_one_model_get_their_own_panels(tmp_path):
    cells = [make_cell(precision=p, hardware=h) for h in (H200, CPU) for p in ("bf16", "fp8_block")]
    tables = stored(tmp_path, [measured_outcome(cell) for cell in cells])
    for name in ("latency", "speedup", "error_latency"):
        titles = heads(FIGURES[name].build(tables["cells"], tables))
        assert len(titles) == 2
        assert sum("on cpu" in title for title in titles) == 1


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_to_show_says_what_to_do(tables, name):
    empty = {table: frame.iloc[0:0] for table, frame in tables.items()}
    figure = FIGURES[name].build(empty["cells"], empty)
    assert not figure.data
    (note,) = figure.layout.annotations
    assert any(word in note.text.lower() for word in ("run ", "moe-workbench"))


def test_more_settings_than_rows_are_said_to_be_left_out(tmp_path):
    tables = stored(tmp_path, [measured_outcome(make_cell(tokens=n), samples=5) for n in range(1, MAX_ROWS + 4)])
    (panel,) = panels(tables["cells"], needs=["latency_us"])
    assert len(panel.row_names) == MAX_ROWS
    assert f"the first {MAX_ROWS} of {MAX_ROWS + 3} settings" in panel.title


def test_long_conditions_take_several_lines(tmp_path):
    outcome = measured_outcome(make_cell(engine="hybrid"))
    outcome = replace(outcome, record=replace(outcome.record, method="measured+roofline"))
    tables = stored(tmp_path, [outcome])
    (panel,) = panels(tables["cells"], needs=["latency_us"])
    lines = panel.title.removeprefix("<b>").partition("</b>")[0].split("<br>")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert "measured+roofline" in " ".join(lines)


def test_speedup_is_baseline_over_candidate(tables):
    figure = FIGURES["speedup"].build(tables["cells"], tables)
    simulated = [trace for trace in figure.data if trace.yaxis == "y2" and trace.x[0] is not None]
    assert np.allclose(simulated[0].x, 1 / 0.62)
    assert set(simulated[0].marker.symbol) == {"triangle-right"}


def test_pareto_keeps_what_nothing_beats():
    assert pareto_mask([1, 2, 3, 2], [0.1, 0.05, 0.2, 0.05]) == [True, True, False, True]


def test_bars_show_the_worst_rank():
    stages = pd.DataFrame(
        {"cell_id": ["a"] * 4, "rank": [0, 0, 1, 1], "start_us": [0, 1, 0, 1], "duration_us": [1.0, 1.0, 1.0, 9.0]}
    )
    assert set(slowest_rank(stages)["rank"]) == {1}
    memory = pd.DataFrame({"cell_id": ["a"] * 3, "rank": [0, 0, 1], "what": list("xyx"), "bytes": [5, 5, 9]})
    assert fullest_rank(memory)["bytes"].tolist() == [5, 5]


def test_bars_leave_out_settings_that_change_nothing(tables):
    figure = FIGURES["links"].build(tables["cells"], tables)
    assert axis_rows(figure, "y") == {"flat", "node_dedup"}
    assert len(axis_rows(figure, "y2")) == 6
    cells = pd.DataFrame({"precision": ["a", "b", "a", "b"], "strategy": ["x", "x", "y", "y"]})
    assert silent_columns(cells, pd.DataFrame({"v": [1, 1, 2, 2]})) == ("precision",)
    assert silent_columns(cells, pd.DataFrame({"v": [1, 2, 3, 4]})) == ()


def test_links_are_totals_over_all_ranks(tables):
    cells, sent = tables["cells"], sent_bytes(tables["cells"], tables["links"])
    totals = sent.pivot_table(index="cell_id", columns="link", values="bytes", aggfunc="sum")
    known = cells[cells["status"] == "ok"].set_index("cell_id")
    assert (totals["scale_out"] == known["scale_out_bytes"][totals.index]).all()
    assert set(totals["self"].dropna().index) == set(known.index[known["engine"] == "measure"])
    names = ["layer/self/out/rank 0", "dispatch.scale_up/scale_out/in/rank 3", "scale_up", "nvme"]
    assert [link_class(name) for name in names] == ["self", "scale_out", "scale_up", "nvme"]


def test_labels_say_what_varies_and_never_nothing(tables):
    groups = dict(condition_groups(tables["cells"]))
    labels = cell_labels(groups[("simulate", "cuda", "h200-sxm")])
    assert labels[0] == "8 GPUs · bf16 · flat"
    assert cell_labels(tables["cells"].iloc[:1]) == ["deepseek-v3-tiny"]


def test_units_are_readable():
    assert [time_text(us) for us in (0.5, 12.345, 4210, 2.5e6, None)] == ["0.5 us", "12.3 us", "4.21 ms", "2.5 s", "-"]
    assert [bytes_text(n) for n in (0, 999, 2_000_000, 1.3e12)] == ["0 B", "999 B", "2 MB", "1.3 TB"]
    assert interval_text(4100, 4210, 4300) == "4.21 ms (4.1-4.3)"
    assert interval_text(None, 4210, None) == "4.21 ms"
    assert number_text(123456) == "123,456"


def exchange_outcome(strategy: str, size: int, *, dtype: str = "bf16", hardware=CPU, busbw: float | None = 1.0):
    cell = make_cell(strategy=strategy, hardware=hardware)
    cell = cell.model_copy(
        update={
            "cell_id": f"{strategy}-{size}-{dtype}-{hardware.name}", "model": None,
            "scope": AllToAllScope(kind="all_to_all", bytes_per_rank=size),
            "dispatch": Dispatch(strategy=strategy, dispatch_dtype=dtype),
        }
    )  # fmt: skip
    figures = {"latency_us": size / 1000, "scale_out_us": 1.0, "busbw_gb_per_s": busbw}
    return Outcome(record=Record(**base_record_fields(cell), status="ok", method="measured", **figures))


def test_exchanges_are_drawn_over_their_sizes_a_line_a_strategy(tmp_path):
    sizes = (4096, 65536, 2**20)
    outcomes = [exchange_outcome(name, size) for size in sizes for name in ("flat", "two_dh")]
    outcomes += [exchange_outcome("flat", size, dtype="nvfp4") for size in sizes]
    outcomes.append(exchange_outcome("flat", 2**20, hardware=H200, busbw=None))
    frames = stored(tmp_path, outcomes)
    figure = FIGURES["message_size"].build(frames["cells"], frames)
    latency, bandwidth, encoded = ([t for t in figure.data if (t.yaxis or "y") == axis] for axis in ("y", "y2", "y3"))
    assert [trace.name for trace in latency] == [trace.name for trace in bandwidth] == ["flat", "two_dh"]
    assert [trace.name for trace in encoded] == ["flat"], "another wire format is another pair of plots"
    assert all(tuple(trace.x) == sizes for trace in (*latency, *bandwidth, *encoded))
    assert tuple(figure.layout.xaxis.ticktext) == ("4KiB", "64KiB", "1MiB")
    assert all(trace.y[0] == 1.0 for trace in bandwidth)
    texts = heads(figure)
    assert [("nvfp4" in text, "h200" in text) for text in texts] == [(False, False), (True, False), (False, True)]
    assert not [trace for trace in figure.data if trace.yaxis == "y6"], "a GPU alone has no bandwidth"
    assert "hops across them 1 us" in latency[0].hovertext[0]
    json.loads(figure.to_json(), parse_constant=pytest.fail)


def test_a_figure_of_another_scope_is_left_out_of_reports(tables):
    assert not FIGURES["message_size"].suits(tables["cells"])
    assert FIGURES["message_size"].suits(tables["cells"].assign(scope="all_to_all"))
    assert FIGURES["latency"].suits(tables["cells"])


def test_roofline_draws_the_roofs_of_the_cells_hardware(tmp_path):
    cell = make_cell(hardware=H200)
    figures = {"tflops": 120.0, "hbm_gb_per_s": 2400.0, "roofline_fraction": 0.5, "bound_by": "memory"}
    tables = stored(tmp_path, [measured_outcome(cell, samples=5, **figures)])
    drawn = FIGURES["roofline"].build(tables["cells"], tables).data
    assert {text for trace in drawn for text in trace.text or () if text} == {"bf16 peak", "fp8 peak"}
    (points,) = [trace for trace in drawn if trace.mode == "markers"]
    assert (list(points.x), list(points.y)) == ([50.0], [120.0])
    roof = next(trace for trace in drawn if trace.text and "bf16 peak" in trace.text)
    assert roof.y[1] == pytest.approx(roof.x[1] * 4.8)


def test_scaling_is_relative_to_the_fewest_gpus_and_keeps_cpu_apart(tables):
    figure = FIGURES["scaling"].build(tables["cells"], tables)
    assert len(heads(figure)) == 1
    assert "h200-sxm" in heads(figure)[0]
    shares = [trace for trace in figure.data if trace.yaxis == "y2" and trace.mode and "lines+markers" in trace.mode]
    assert len(shares) == 4
    for trace in shares:
        assert list(trace.x) == [8, 32, 128]
        assert list(trace.y) == pytest.approx([1.0, 4**-0.25, 16**-0.25])


def test_imbalance_is_the_hottest_over_the_mean_of_each_step(tables):
    cell = tables["cells"]["cell_id"].iloc[0]
    rows = [
        {"cell_id": cell, "layer": layer, "step": step, "kind": "rank", "index": rank, "tokens": tokens}
        for step, counts in enumerate(((1, 3), (2, 2)))
        for layer in (0, 1)
        for rank, tokens in enumerate(counts)
    ]
    figure = FIGURES["imbalance"].build(tables["cells"], {"loads": pd.DataFrame(rows)})
    (line,) = figure.data
    assert (list(line.x), list(line.y)) == ([0, 1], [1.5, 1.0])


def test_balancers_are_held_against_linear_placement(tmp_path):
    slow = make_cell(engine="simulate", hardware=H200)
    balance = slow.balance.model_copy(update={"placement": Placement(kind="greedy", redundant_experts=0)})
    fast = slow.model_copy(update={"balance": balance, "cell_id": "feedbeef"})
    tables = stored(tmp_path, [simulated_outcome(slow, base_us=100.0), simulated_outcome(fast, base_us=80.0)])
    figure = FIGURES["balancers"].build(tables["cells"], tables)
    (dots,) = [trace for trace in figure.data if trace.x[0] is not None]
    assert list(dots.x) == pytest.approx([1.25])


def test_memory_of_ranks_is_marked_with_what_the_device_has(tables):
    cells = tables["cells"]
    figure = FIGURES["memory_ranks"].build(cells[cells["hardware"] == "h200-sxm"], tables)
    assert figure.layout.shapes[0].x0 == pytest.approx(141)
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(1.4)
