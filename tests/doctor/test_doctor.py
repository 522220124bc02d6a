"""What doctor says of this machine."""

import json

import pytest
import torch

from kernels.recipes import RECIPES
from workbench.cli.main import main
from workbench.doctor import missing
from workbench.doctor.facts import examine


def test_doctor_json_is_strict_and_whole(capsys):
    assert main(["doctor", "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["machine"]["packages"]["torch"] == torch.__version__
    assert facts["devices"][0]["device"] == "cpu"
    assert facts["devices"][0]["math_paths"]["bf16"] == "native"
    assert set(facts["devices"][0]["math_paths"]) == set(RECIPES)
    assert len(facts["devices"]) == 1 + torch.cuda.device_count()
    assert facts["ray"]["cpu_ranks"] >= 4


def test_doctor_table_names_versions_and_precisions(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert torch.__version__ in " ".join(out.split())
    assert "nvfp4_w4a16" in out
    assert "CPU ranks" in out


def test_doctor_names_what_is_missing_and_how_to_get_it(monkeypatch, capsys):
    absent = missing.Gap("no_such_module_here", "a dashboard", "pip install 'moe-workbench[dashboard]'")
    monkeypatch.setattr(missing, "MODULES", (absent,))
    monkeypatch.setattr(missing.shutil, "which", lambda name: None)
    gaps = {gap["name"]: gap for gap in examine()["missing"]}
    assert gaps["no_such_module_here"]["how"] == "pip install 'moe-workbench[dashboard]'"
    assert "apt-get install chromium" in gaps["chromium"]["how"]
    assert main(["doctor"]) == 0
    assert "no_such_module_here" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_w12_doctor_warns_of_a_stale_variable(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    warnings = "\n".join(examine()["warnings"])
    assert "CUDA_VISIBLE_DEVICES='7'" in warnings
    assert "RAY_ADDRESS='10.0.0.1:6379' is not used" in warnings
