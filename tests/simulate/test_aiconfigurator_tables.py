"""Tables that a user installed are found without being imported, and used on the GPU that they are of."""

import sys

import pandas as pd
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.run.simulated import run_simulated
from workbench.run.validation.installed import installed_section
from workbench.simulate import aiconfigurator_tables, estimate

PACKAGE = "aiconfigurator_core"
CELL = {"kernel": "sglang", "precision": "bf16", "model": "qwen3-30b-a3b", "ep": 1, "tokens": 1024}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A stand-in for the package with rows of one kernel on an L40S; a function that writes it with a version."""

    def write(version):
        rows = [
            {"kernel_source": "sglang_fused_moe_triton", "moe_dtype": "bfloat16", "num_tokens": tokens,
             "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1,
             "distribution": "balanced", "latency": 5.0 + tokens / 100}
            for tokens in (64, 1024, 16384)
        ]  # fmt: skip
        for system, release, factor in (("l40s", "0.5.9", 7.0), ("l40s", "0.5.14", 1.0), ("h200_sxm", "0.5.14", 1.0)):
            folder = tmp_path / PACKAGE / "systems" / "data" / system / "moe" / "sglang" / release
            folder.mkdir(parents=True)
            table = pd.DataFrame(rows)
            table.assign(latency=factor * table["latency"]).to_parquet(folder / "moe_perf.parquet")
        (tmp_path / PACKAGE / "__init__.py").write_text("raise RuntimeError('imported')")
        info = tmp_path / f"{PACKAGE}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: {version}\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        _forget()

    yield write
    monkeypatch.undo()
    _forget()


def _forget():
    for cached in (aiconfigurator_tables.tables_dir, aiconfigurator_tables.installed_layers, estimate._cached):
        cached.cache_clear()


def priced():
    return run_simulated(make_cell(cluster=cluster_of("l40s", gpus=1), **CELL)).record


def test_installed_rows_price_a_gpu_that_the_package_has_no_rows_of(installed):
    _forget()
    assert priced().method == "calibrated"
    assert "transferred_from" in priced().flags
    installed("0.12.0")
    found = priced()
    assert found.method == "published"
    assert "transferred_from" not in found.flags
    assert found.compute_us > 5_000, "the newest release's rows of 15 ms, not the constants of another GPU"
    assert found.compute_us == pytest.approx(15_240, rel=0.3)


def test_another_version_of_the_package_is_passed_over(installed):
    installed("0.13.0")
    assert aiconfigurator_tables.tables_dir() is None
    assert priced().method == "calibrated"


def test_validate_meets_the_constants_with_shapes_that_only_the_installed_tables_have(installed):
    _forget()
    (alone,) = installed_section()
    assert alone.count == 0
    assert "not installed" in alone.held_out
    installed("0.12.0")
    lines = installed_section()
    assert lines[0].count == 3
    assert {(line.hardware, line.split) for line in lines if line.points} == {("h200-sxm", "never seen, sglang")}
