"""The commands ``validate`` and ``calibrate``."""

import json

import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.analysis.validation import read_points, summarise
from workbench.cli.main import main
from workbench.run.simulated import run_simulated
from workbench.simulate.calibration_files import read_constants, read_records
from workbench.spec.calibration import FOLDER
from workbench.spec.catalog import load_hardware


def test_validate_prints_lines_with_goals_and_writes_its_table(tmp_path, capsys):
    table = tmp_path / "deep" / "validation.parquet"
    assert main(["validate", "--section", "own", "--format", "json", "--output", str(table)]) == 0
    lines = json.loads(capsys.readouterr().out)["validation"]
    goals = {(line["method"], line["split"]): line for line in lines if line["goal"]}
    assert goals["best", "another run"]["met"], "whole layers of another run lie in their bands"
    assert goals["measured", "token count"]["mape"] < 8
    assert all(line["held_out"] for line in lines)
    points = read_points(table)
    assert set(points["hardware"]) == {"h200-sxm"}
    again = summarise(points, by=("method", "split")).set_index(["method", "split"])
    line = goals["measured", "token count"]
    assert again.loc[("measured", "token count"), "mape"] == pytest.approx(line["mape"])
    assert again.loc[("measured", "token count"), "coverage"] == pytest.approx(line["coverage"])


def test_validate_times_one_estimate(tmp_path, capsys):
    table = str(tmp_path / "v.parquet")
    assert main(["validate", "--section", "speed", "--format", "json", "-o", table]) == 0
    (line,) = json.loads(capsys.readouterr().out)["validation"]
    assert line["met"] is True, line["held_out"]
    assert len(read_points(tmp_path / "v.parquet")) == 0


def test_validate_says_what_no_measurement_has_checked(tmp_path, capsys):
    table = str(tmp_path / "v.parquet")
    assert main(["validate", "--section", "unvalidated", "--section", "above_peak", "-o", table]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("AMD mi300x: unvalidated", "Intel gaudi3: unvalidated", "NVIDIA h800-sxm: unvalidated"):
        assert part in printed
    assert "set aside everywhere" in printed
    assert main(["validate", "--section", "nonsense", "-o", table]) == 2
    assert "no section 'nonsense'" in capsys.readouterr().err


@pytest.fixture
def fresh_catalog():
    """The catalog's parts read anew, before and after."""
    load_hardware.cache_clear()
    yield
    load_hardware.cache_clear()


@pytest.mark.usefixtures("fresh_catalog")
def test_a_calibration_of_this_machine_prices_its_cells(tmp_path, monkeypatch, capsys):
    import workbench.run.calibrate as module

    plan = {"cpu": (("qwen3-tiny", "mixtral-tiny"), (1, 4, 16, 64, 128), ("bf16", "fp8_block"), 0.02)}
    monkeypatch.setattr(module, "PLANS", plan)
    monkeypatch.setattr(module, "COPY_BYTES", {"cpu": 2**22})
    monkeypatch.setattr(module, "MATRIX", {"cpu": 128})
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert main(["calibrate"]) == 0
    assert "20 layers measured" in capsys.readouterr().out
    assert read_constants()["families"][0]["hardware"] == "cpu"
    assert len(read_records()[lambda frame: frame["hardware"] == "cpu"]) == 20
    cell = make_cell("qwen3-tiny", ep=1, tokens=32, cluster=cluster_of("cpu", gpus=1))
    record = run_simulated(cell).record
    measured = json.loads((tmp_path / "cpu" / "ceilings.json").read_text())["memory_tb_per_s"]
    assert cell.cluster.hardware.memory_tb_per_s == measured
    assert record.method == "measured"
    assert record.error_band_pct > 0


def test_a_damaged_calibration_is_named(tmp_path, monkeypatch):
    from workbench.spec.calibration import measured_ceilings

    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "cpu").mkdir()
    for text in ("{", '{"bf16_dense_tflops": 0, "memory_tb_per_s": 1, "launch_us": 1}'):
        (tmp_path / "cpu" / "ceilings.json").write_text(text)
        with pytest.raises(ValueError, match="run moe-workbench calibrate again"):
            measured_ceilings("cpu")
