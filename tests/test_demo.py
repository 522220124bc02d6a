"""The main job from end to end: real ranks, the full model beside them, one table, one report."""

import json
from pathlib import Path

import pytest

ORDER = ("bf16", "fp8_block", "nvfp4_w4a16", "mxfp4_w4a16")


def strict(text: str) -> dict:
    """Parsed JSON; NaN and Infinity are refused."""

    def refuse(word: str):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def cells(demo) -> list[dict]:
    return strict(demo.command("show", "latest", "--format", "json"))["cells"]


def test_it_ends_well_and_says_where_to_look(demo):
    assert demo.status == 0, demo.printed
    (run,) = (path for path in demo.results.iterdir() if path.is_dir())
    assert run.name in demo.printed
    assert "56 ok" in demo.printed


def test_every_cell_is_ok_in_one_schema(cells):
    assert {cell["status"] for cell in cells} == {"ok"}
    assert {cell["engine"] for cell in cells} == {"measure", "simulate"}
    assert len({tuple(cell) for cell in cells}) == 1
    assert {cell["num_gpus"] for cell in cells if cell["engine"] == "simulate"} == {8, 32, 128}


def test_errors_are_ordered_within_a_model(cells):
    measured = [cell for cell in cells if cell["engine"] == "measure"]
    for model in {cell["model"] for cell in measured}:
        bounds = [
            [cell["rel_error"] for cell in measured if (cell["model"], cell["precision"]) == (model, precision)]
            for precision in ORDER
        ]
        assert max(bounds[0]) < min(bounds[1])
        assert max(bounds[1]) < min(bounds[2])
        assert max(bounds[2]) <= min(bounds[3])


def test_measured_cells_say_what_they_are_from(cells):
    for cell in (cell for cell in cells if cell["engine"] == "measure"):
        assert (cell["device"], cell["hardware"], cell["timer"]) == ("cpu", "cpu", "wall")
        assert cell["num_samples"] >= 1
        assert cell["latency_ci_low_us"] <= cell["latency_us"] <= cell["latency_ci_high_us"]
        assert cell["wire_bytes"] == cell["scale_up_bytes"] + cell["scale_out_bytes"] > 0
        assert "virtual_nodes" in cell["flags"]


def test_deduplication_sends_less_between_nodes(cells):
    def scale_out(strategy: str) -> dict:
        return {
            (c["engine"], c["model"], c["skew"], c["precision"], c["num_gpus"]): c["scale_out_bytes"]
            for c in cells
            if c["strategy"] == strategy and c["nodes"] > 1
        }

    flat, dedup = scale_out("flat"), scale_out("node_dedup")
    assert flat.keys() == dedup.keys()
    assert all(dedup[key] < flat[key] for key in flat)


def test_the_report_is_one_file_that_needs_nothing_from_outside(demo, tmp_path):
    target = tmp_path / "report.html"
    demo.command("report", "latest", "-o", str(target))
    text = Path(target).read_text()
    assert "deepseek-v3-tiny" in text
    assert "<script src=" not in text
    assert "<link" not in text.split("<script", 1)[0]
