"""Each page by itself, without a browser."""

import base64
import json
import time
import zlib
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.control import packed, unpacked
from tests.sample_run import write_sample_run
from workbench.analysis.validation import write_points
from workbench.spec.validation import POINT_COLUMNS
from workbench.store.parts import part_path
from workbench.store.progress import append_event
from workbench.store.run_folder import list_runs, open_run
from workbench.store.writer import Writer

PAGES = Path(__file__).parents[2] / "dashboard" / "pages"
FIGURES = {
    "run": 1, "precisions": 3, "routing": 4, "dispatch": 3, "scaling": 2, "timeline": 2, "memory": 2, "roofline": 1,
    "compare": 1,
}  # fmt: skip
WITHOUT_DATA = {"routing": 2, "roofline": 1}
"""Figures that the sample run has nothing for; they say what to do."""
EMPTY = [*FIGURES, "data"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboard")
    write_sample_run(folder, name="first")
    write_sample_run(folder, name="second: *bold* `x`")
    return folder


@pytest.fixture
def page(results, monkeypatch):
    def start(name, folder=results, **query):
        monkeypatch.setenv("MOE_WORKBENCH_RESULTS", str(folder))
        test = AppTest.from_file(str(PAGES / f"{name}.py"), default_timeout=60)
        for key, value in query.items():
            test.query_params[key] = value
        return test.run()

    return start


def specs(test):
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def said(test):
    return "\n".join(text.value for text in test.markdown)


@pytest.mark.parametrize("name", FIGURES)
def test_page_draws_its_figures_without_a_fault(page, name):
    test = page(name)
    assert not test.exception
    assert not test.warning
    drawn = specs(test)
    assert len(drawn) == FIGURES[name]
    assert sum(not spec["data"] for spec in drawn) == WITHOUT_DATA.get(name, 0)
    assert all(spec["data"] or spec["layout"]["annotations"][0]["text"] for spec in drawn)


@pytest.mark.parametrize("name", EMPTY)
def test_page_without_any_run_says_how_to_start_one(page, name, tmp_path, monkeypatch):
    monkeypatch.setattr("dashboard.data.reference_dir", lambda: tmp_path / "nowhere")
    test = page(name, folder=tmp_path / "empty")
    assert not test.exception
    assert "No runs in" in test.info[0].value
    assert "moe-workbench run quickstart" in test.code[0].value


def test_without_a_run_of_its_own_it_opens_on_the_reference(page, tmp_path, monkeypatch):
    write_sample_run(tmp_path / "reference", name="reference")
    monkeypatch.setattr("dashboard.data.reference_dir", lambda: tmp_path / "reference")
    test = page("run", folder=tmp_path / "empty")
    assert not test.exception
    assert "these are the reference runs" in test.info[0].value
    assert test.title[0].value == "reference"


def test_link_reproduces_the_view(page, results):
    first = open_run(results, "first").run_id
    test = page("precisions", run=first, engine="measure", precision=["bf16", "fp8_block"])
    assert test.sidebar.selectbox[0].value == first
    assert {chooser.label: chooser.value for chooser in test.sidebar.multiselect if chooser.value} == {
        "Engine": ["measure"],
        "Precision": ["bf16", "fp8_block"],
    }
    assert {trace.get("name") for trace in specs(test)[0]["data"]} == {"fp8_block"}
    assert "h200-sxm" not in json.dumps(specs(test))


def test_choice_goes_into_the_address(page, results):
    test = page("precisions")
    chooser = next(chooser for chooser in test.sidebar.multiselect if chooser.label == "Engine")
    chooser.select("simulate").run()
    assert test.query_params["engine"] in ("simulate", ["simulate"])
    assert open_run(results, "latest").run_id in test.query_params["run"]
    assert "measured, on cpu" not in json.dumps(specs(test))
    chooser = next(chooser for chooser in test.sidebar.multiselect if chooser.label == "Engine")
    chooser.unselect("simulate").run()
    assert "engine" not in test.query_params
    assert "measured, on cpu" in json.dumps(specs(test))


def test_link_to_a_run_that_is_gone_says_so(page):
    test = page("run", run="20200101T000000Z-gone-abcdef")
    assert not test.exception
    assert "20200101T000000Z-gone-abcdef of this link is not in" in test.warning[0].value


def test_filters_that_leave_nothing_show_empty_figures(page):
    test = page("precisions", engine="simulate", model="gpt-oss-tiny")
    assert not test.exception
    assert all(not spec["data"] for spec in specs(test))


def test_unreadable_files_are_named(page, tmp_path):
    run = write_sample_run(tmp_path)
    part_path(run.path, "samples", 9).write_bytes(b"")
    test = page("run", folder=tmp_path)
    assert not test.exception
    assert "samples/part-000009.parquet" in test.warning[0].value


def test_running_run_shows_its_progress(page, tmp_path):
    run = write_sample_run(tmp_path)
    append_event(
        run.progress_path, {"event": "cell", "cell_id": "x", "status": "ok", "done": 3, "total": 9, "eta_s": 7}
    )
    with Writer(run):
        test = page("run", folder=tmp_path)
        assert not test.exception
        (bar,) = test.get("progress")
        assert "3 of 9 cells, about 7 s left" in bar.proto.text


def test_scenario_that_is_refused_says_why(page, tmp_path):
    test = page("run", folder=tmp_path)
    test.text_area[0].set_value("name: small\nmodel: deepseek-v3-tinny\nengine: simulat\n").run()
    assert not test.exception
    assert "scenario.yaml:2: model" in test.error[0].value
    assert "scenario.yaml:3: engine" in test.error[0].value
    assert "Traceback" not in test.error[0].value
    assert test.button[0].disabled
    assert not list(tmp_path.iterdir())


def test_edited_scenario_is_planned_linked_started_and_finished(page, tmp_path):
    text = "name: small\nmodel: deepseek-v3-tiny\nengine: simulate\ncluster: {hardware: h200-sxm}\n"
    folder = tmp_path / "results"
    test = page("run", folder=folder, edit=packed(text))
    assert test.text_area[0].value == text
    assert "1 cells (1 simulate); all fit in memory" in test.success[0].value
    test.button[0].click().run()
    assert not test.exception
    assert test.title[0].value == "small"
    deadline = time.monotonic() + 120
    while list_runs(folder)[0].status != "finished":
        assert time.monotonic() < deadline, list_runs(folder)
        time.sleep(0.5)
    test.run()
    assert not test.exception
    assert "1 ok" in said(test)


def test_text_of_an_address_is_bounded_and_may_be_nonsense():
    assert unpacked(packed("a: 1\n")) == "a: 1\n"
    assert unpacked("nonsense") is None
    assert unpacked(base64.urlsafe_b64encode(zlib.compress(b"a" * 10**6)).decode()) is None
    assert packed("".join(map(str, range(10**5)))) is None


def test_data_filters_orders_and_pages_from_the_address(page):
    test = page("data", engine="simulate", order="latency_us", falling="falling", columns=["engine", "latency_us"])
    assert not test.exception
    (rows,) = [frame.value for frame in test.dataframe]
    assert list(rows.columns) == ["engine", "latency_us"]
    assert set(rows["engine"]) == {"simulate"}
    assert rows["latency_us"].dropna().is_monotonic_decreasing
    assert f"**{len(rows)} cells**" in said(test)


def test_compare_tells_verdicts_and_filters_them(page, results):
    test = page("compare", verdict="faster")
    assert not test.exception
    assert "of 47 cells" in said(test)
    assert next(iter(test.multiselect)).value == [open_run(results, "first").run_id]
    assert not test.dataframe or set(test.dataframe[0].value["verdict"]) <= {"faster"}


def test_validation_shows_the_table_or_how_to_make_it(page, tmp_path):
    folder = tmp_path / "results"
    test = page("validation", folder=folder)
    assert "moe-workbench validate --output" in test.code[0].value
    point = dict.fromkeys(POINT_COLUMNS) | {"section": "own", "method": "roofline", "split": "kernel", "tokens": 8}
    points = [point | {"hardware": name, "measured_us": 10.0, "predicted_us": 12.0} for name in ("a100", "h100")]
    write_points(points, folder / "validation.parquet")
    test = page("validation", folder=folder, by_hardware="h100")
    assert not test.exception
    assert test.dataframe[0].value["median"].tolist() == pytest.approx([20.0])
    assert len(specs(test)[0]["data"]) == 1


def test_loads_are_shown_with_their_definitions(page):
    test = page("routing")
    (table,) = [frame.value for frame in test.dataframe if "MaxVio" in frame.value]
    assert set(table["counted"]) >= {"expert", "rank"}
    assert (table["max/mean"] >= 1).all()
    assert "mean(n) / max(n)" in "".join(text.value for text in test.markdown)
